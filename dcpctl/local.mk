# dcpctl
