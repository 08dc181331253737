# dcpd/ipc and its unit tests
