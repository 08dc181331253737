libdcpd_a_SOURCES += dcpd/base/base.c dcpd/base/base.h
