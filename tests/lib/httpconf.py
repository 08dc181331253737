"""HttpDaemon with keys of the http plugin's own configuration."""
import json
import os
import shutil
import tempfile

from httpd import TINY, HttpDaemon

# dcp-tiny's tokenizer before an engine of no weight: text at any speed.
NULL = ("--engine", "null", "--model", TINY)


class Configured(HttpDaemon):
    def __init__(self, conf, *args, **kw):
        self.conf_dir = tempfile.mkdtemp(prefix="dcpd-http-")
        path = os.path.join(self.conf_dir, "dcpd.json")
        with open(path, "w") as f:
            json.dump({"plugins": {"http": conf}}, f)
        super().__init__("--config", path, *args, **kw)

    def stop(self):
        shutil.rmtree(self.conf_dir, ignore_errors=True)
        return super().stop()


def key_file(folder, *keys, mode=0o600):
    path = os.path.join(folder, "keys")
    with open(path, "w") as f:
        f.write("".join(k + "\n" for k in keys))
    os.chmod(path, mode)
    return path
