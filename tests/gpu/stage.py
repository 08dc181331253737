"""An install tree (make install DESTDIR=STAGE) instead of a build directory, for
tests/lib/daemon.py."""
import os
import sys

SRC = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SRC, "tests/lib"))


def use(path):
    local = os.path.join(os.path.abspath(path), "usr/local")
    os.environ["DCPD"] = f"{local}/sbin/dcpd"
    os.environ["DCPCTL"] = f"{local}/bin/dcpctl"
    os.environ["DCPD_MODULE_DIR"] = f"{local}/lib/dcpd"
    os.environ["LD_LIBRARY_PATH"] = f"{local}/lib:" + \
        os.environ.get("LD_LIBRARY_PATH", "")
    os.environ["DCPCLIENT_LIB"] = f"{local}/lib/libdcpclient.so"
