# Units, users, folders: for systemd. `make install` puts them where configure
# says; --with-systemdsystemunitdir=no leaves them out.
UNITS_MADE = systemd/dcpd.service systemd/dcpd@.service
UNITS = systemd/dcpd.socket systemd/dcpd-admin.socket systemd/dcpd-http.socket
EXTRA_DIST += $(UNITS) systemd/dcpd.service.in systemd/dcpd@.service.in \
	systemd/service.inc systemd/hardening.inc systemd/dcpd.sysusers \
	systemd/dcpd.tmpfiles systemd/gpu.conf
CLEANFILES += $(UNITS_MADE) install.lock

# What both services have in common is written once.
$(UNITS_MADE): systemd/%.service: systemd/%.service.in systemd/service.inc \
		systemd/hardening.inc Makefile
	$(AM_V_GEN)mkdir -p systemd && sed \
	    -e '/^@service@$$/{r $(srcdir)/systemd/service.inc' -e 'd;}' \
	    -e '/^@hardening@$$/{r $(srcdir)/systemd/hardening.inc' -e 'd;}' \
	    -e 's|@sbin[d]ir@|$(sbindir)|g' -e 's|@bin[d]ir@|$(bindir)|g' \
	    -e 's|@sysconf[d]ir@|$(sysconfdir)|g' $< >$@.tmp && mv $@.tmp $@

if SYSTEMD_UNITS
systemdsystemunit_DATA = $(UNITS_MADE) $(UNITS)
dropindir = $(pkgdatadir)/systemd
dropin_DATA = systemd/gpu.conf
install-data-local: install-users
install-users:
	$(MKDIR_P) "$(DESTDIR)$(sysusersdir)" "$(DESTDIR)$(tmpfilesdir)" \
	    "$(DESTDIR)$(sysconfdir)/dcpd"
	$(INSTALL_DATA) $(srcdir)/systemd/dcpd.sysusers \
	    "$(DESTDIR)$(sysusersdir)/dcpd.conf"
	$(INSTALL_DATA) $(srcdir)/systemd/dcpd.tmpfiles \
	    "$(DESTDIR)$(tmpfilesdir)/dcpd.conf"
uninstall-local: uninstall-users
uninstall-users:
	rm -f "$(DESTDIR)$(sysusersdir)/dcpd.conf" \
	    "$(DESTDIR)$(tmpfilesdir)/dcpd.conf"
endif
.PHONY: install-users uninstall-users

TESTS += tests/integration/units.sh tests/integration/test_systemd_pid1.py
EXTRA_DIST += tests/integration/units.sh tests/integration/test_systemd_pid1.py
