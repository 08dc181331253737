# dcpd/sched and its unit tests
