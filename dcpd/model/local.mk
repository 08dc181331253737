# dcpd/model and its unit tests
