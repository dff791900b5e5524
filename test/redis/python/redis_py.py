"""redis-py against a node: see clients_test.go, which says what a client has to show."""

import json
import os
import sys
import threading
import time

import redis


def connect(kind, **more):
    host, port = os.environ[kind].rsplit(":", 1)
    options = {"host": host, "port": int(port), "decode_responses": True, "socket_timeout": 10, **more}
    if kind == "SECURE":
        options |= {"ssl": True, "ssl_ca_certs": os.environ["CA"]}
        options.setdefault("password", os.environ["TOKEN"])
    return redis.Redis(**options)


def expect(what, have, want):
    if have != want:
        raise AssertionError(f"{what}: have {have!r}, want {want!r}")


def show(kind, protocol):
    key = f"py-{kind}-{protocol}"
    r = connect(kind, protocol=protocol)
    expect("ping", r.ping(), True)
    for i in range(5):
        expect("throttle", r.execute_command("CL.THROTTLE", key, 4, 5, 18000)[:4], [0, 5, 4 - i, -1])
    expect("throttle", r.execute_command("CL.THROTTLE", key, 4, 5, 18000)[:3], [1, 5, 0])

    pipe = r.pipeline(transaction=False)
    for _ in range(100):
        pipe.execute_command("CL.THROTTLE", key + "-pipe", 49, 1, 36000)
    expect("pipeline", [one[0] for one in pipe.execute()], [0] * 50 + [1] * 50)

    increx = ("INCREX", key, "UBOUND", 2, "EX", 3600, "ENX")
    expect("increx", [r.execute_command(*increx) for _ in range(3)], [[1, 1], [2, 1], [2, 0]])
    expect("ttl", 17000 < r.ttl(key) <= 18000, True)
    expect("exists", r.exists(key, key + "-none"), 1)

    check = r.execute_command("RL.CHECK", "plan", key)
    if isinstance(check, list):
        expect("protocol", protocol, 2)
        check = dict(zip(check[::2], check[1::2]))
    expect("check", (check["allowed"] in (1, True), check["limit"], check["remaining"]), (True, 10, 9))

    try:
        r.get(key)
    except redis.ResponseError as e:
        expect("unknown", "rlnode limits rates" in str(e), True)
    else:
        raise AssertionError("GET was answered")
    expect("del", r.delete(key, key + "-none"), 1)
    expect("ttl", r.ttl(key), -2)

    if kind == "SECURE":
        try:
            connect(kind, protocol=protocol, password="wrong").ping()
        except redis.AuthenticationError:
            pass
        else:
            raise AssertionError("a wrong token was accepted")


def loop():
    r = connect("ROLLING", protocol=3)
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    ok = failed = 0
    last = time.monotonic()
    while not over.is_set():
        try:
            r.execute_command("CL.THROTTLE", "loop-py", 1000000, 1000000, 60)
            ok, last = ok + 1, time.monotonic()
        except redis.RedisError:
            failed += 1
        time.sleep(0.02)
    print(json.dumps({"ok": ok, "failed": failed, "silent_ms": int(1000 * (time.monotonic() - last))}))


if sys.argv[1] == "loop":
    loop()
else:
    for one in ("PLAIN", "SECURE"):
        for version in (2, 3):
            show(one, version)
    print("ok")
