#!/usr/bin/env python3
"""Many requests of all kinds leave nothing behind: memory, descriptors,
mappings and pages are what they were after the first ones. A fifth is
cancelled, clients come and go, others are killed in every state. Then one
prompt is aborted and sent again 1000 times, and more than the queue takes is
refused at once.

DCPD_TEST_LONG=1: 100,000 requests instead of 3,000; DCPD_SOAK: this many.
"""
import os
import random
import subprocess
import sys
import time

srcdir = os.environ.get("srcdir", ".")
sys.path.insert(0, os.path.join(srcdir, "tests/lib"))
import dcpclient as D  # noqa: E402
from daemon import BUILD, Daemon  # noqa: E402

LONG = os.environ.get("DCPD_TEST_LONG", "") not in ("", "0")
TOTAL = int(os.environ.get("DCPD_SOAK", 100000 if LONG else 3000))
WARM = max(1000, TOTAL // 20)   # requests until all has its size
SESSION = 200                   # requests of one connection
STATES = ["hello", "submit", "queued", "prefill", "decode", "full", "forked"]
# An allocator's noise, KiB, and 30 bytes a request: a leak has more.
NOISE, A_REQUEST = 4096, 30
HELD = [7 * i % 900 for i in range(2000)]   # a prompt that comes again


def request(rnd):
    """One of many kinds."""
    n = rnd.randrange(1, 24)
    ids = [rnd.randrange(900) for _ in range(rnd.choice((3, 70, 200, 1500)))]
    return rnd.choice((
        dict(tokens=ids, max_tokens=n),
        dict(tokens=HELD[:rnd.randrange(1, 2000)], max_tokens=n),
        dict(text="The river " * rnd.randrange(1, 20), max_tokens=n),
        dict(chat=[{"role": "user", "content": "How many? " * 3}],
             max_tokens=n),
        dict(tokens=ids, max_tokens=n, flags=D.LOGPROBS,
             top_logprobs=rnd.randrange(5)),
        dict(tokens=ids[:200], max_tokens=1, flags=D.LOGPROBS | D.ECHO),
        dict(text="Once", max_tokens=n, stop=["a", "zz"], stop_ids=[70]),
        dict(tokens=ids, max_tokens=n, temperature=1.0, seed=1,
             logit_bias={5: 1.5}, top_k=3, deadline_ms=60000),
        dict(chat=[{"content": 5}], max_tokens=1),      # an error
    ))


def session(d, rnd, n, count):
    with d.client() as c:
        live = []
        for i in range(n):
            live.append(c.submit(**request(rnd)))
            if rnd.random() < 0.2:
                if rnd.random() < 0.5:
                    time.sleep(0.001)
                try:
                    c.cancel(rnd.choice(live))
                except OSError:
                    pass                    # it has ended
            while len(live) > 24 or (i + 1 == n and live):
                ev = c.next()
                a = c.live[ev.request]
                a.add(ev)
                if ev.type != D.EV_DELTA:
                    live.remove(ev.request)
                    del c.live[ev.request]
                    what = a.finish or "error"
                    count[what] = count.get(what, 0) + 1


def kill_one(d, rnd):
    v = subprocess.Popen(
        [f"{BUILD}/tests/hostile/victim", d.socket, rnd.choice(STATES)],
        stdout=subprocess.PIPE, start_new_session=True)
    v.stdout.readline()
    os.killpg(v.pid, 9)
    v.wait()
    v.stdout.close()


def state(d):
    """RSS in KiB, descriptors, mappings of clients, pages per rank."""
    end = time.monotonic() + 60
    while True:
        s = d.ctl_json("status")
        if s["live"] == 0 and s["counters"]["clients"] == 0:
            break
        assert time.monotonic() < end, "requests do not end"
        time.sleep(0.02)
    d.ctl_json("check")
    used = [r["pages_used"] for r in s["ranks"]]
    # The last connection is closed a little later, and buffers of it freed.
    was, since = None, time.monotonic()
    while time.monotonic() - since < 1:
        now = holdings(d.p.pid)
        if now != was:
            assert time.monotonic() < end, f"never still: {was}, {now}"
            was, since = now, time.monotonic()
        time.sleep(0.1)
    return *was, used


def holdings(pid):
    with open(f"/proc/{pid}/status") as f:
        rss = next(int(x.split()[1]) for x in f if x.startswith("VmRSS"))
    with open(f"/proc/{pid}/maps") as f:
        maps = sum("memfd:dcpd-" in x for x in f)
    return rss, len(os.listdir(f"/proc/{pid}/fd")), maps


def same(what, first, last, requests):
    print(f"{what}: after warm-up {first}, after {requests} more {last} "
          "(RSS KiB, descriptors, mappings, pages used)", flush=True)
    assert last[0] - first[0] < NOISE + requests * A_REQUEST // 1024, "memory"
    assert last[1:] == first[1:], "something is left"


def mixed(d, rnd):
    count, killed, first, done = {}, 0, None, 0
    while done < TOTAL:
        session(d, rnd, SESSION, count)
        done += SESSION
        kill_one(d, rnd)
        killed += 1
        if first is None and done >= WARM:
            first, warm = state(d), done
    print(f"{done} requests: {count}; {killed} clients killed")
    assert count["abort"] > done * 0.02 and count["error"] > done * 0.02
    same("mixed requests", first, state(d), done - warm)


def abort_and_send_again(d, rounds=1000):
    with d.client() as c:
        for i in range(rounds + 100):
            r = c.submit(tokens=HELD, max_tokens=1000, flags=D.IGNORE_EOS)
            if i % 2:
                c.next()
            c.cancel(r)
            assert c.wait([r])[0].finish == "abort"
            if i == 100:
                first = rss(d)
        last = rss(d)
        a = c.generate(tokens=HELD, max_tokens=2)
    print(f"aborted and sent again {rounds} times: RSS {first}, {last} KiB")
    assert a.usage["cached_tokens"] == (len(HELD) - 1) // 64 * 64, a.usage
    assert last - first < 1024
    d.ctl_json("check")


def rss(d):
    with open(f"/proc/{d.p.pid}/status") as f:
        return next(int(x.split()[1]) for x in f if x.startswith("VmRSS"))


def overload(d):
    """More than the queue takes, at once: the rest is refused at once."""
    with d.client() as c:
        ids = []
        while len(ids) < 600:
            try:
                ids.append(c.submit(tokens=[1], max_tokens=500,
                                    flags=D.IGNORE_EOS))
            except D.DcpError as e:
                assert e.errno == 11, e
                time.sleep(0.001)           # the ring is full
        errors = [a.error for a in c.wait(ids)]
        refused = [e for e in errors if e is not None]
        assert refused and set(refused) == {-11}, set(refused)
        assert c.generate(tokens=[1], max_tokens=2).finish == "length"
    print(f"overload: {len(refused)} of {len(ids)} refused")


def main():
    rnd = random.Random(1)
    with Daemon("--engine", "null", "--model",
                os.path.join(srcdir, "models/dcp-tiny"), "--tp", 4,
                "--dcp-size", 4, "--queue-max", 250,
                "--null-pages", 8192, "--null-step-us", 200) as d:
        mixed(d, rnd)
        abort_and_send_again(d)
        overload(d)
        state(d)


if __name__ == "__main__":
    main()
