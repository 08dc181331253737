# dcpd/text and its unit tests
