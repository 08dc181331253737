# main, config, admin socket
libdcpd_a_SOURCES += dcpd/admin/counters.c dcpd/admin/counters.h
