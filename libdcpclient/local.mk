# libdcpclient: library, header, .pc, man pages, examples, its unit tests
