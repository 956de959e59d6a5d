#!/usr/bin/env python3
"""hostile_peers.py DSV [--seed N] [--rounds N] [--only KIND,...]: several ranks of `dsv` over TCP on
127.0.0.1, and strangers at their ports, other jobs, ranks that are killed, stopped or set up wrongly.

Each round runs every kind once, with times, ranks and bytes drawn from the seed. What must hold:
  - strangers never take part: the ranks soon end with status 0, and a stranger receives only a challenge
    and a refusal;
  - each rank works with its own job or ends with a cause;
  - when a rank is lost, every other rank ends in time with a nonzero status (but no signal), and with
    a cause: rank 0 prints it on stderr; if rank 0 is lost, every other rank prints its cause.
Prints a line of counts per kind; the exit status is 1 if a rule was broken."""
import argparse
import collections
import hashlib
import hmac
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

MAGIC = b"dsv-job2"
CHALLENGE, HELLO, ANSWER = 40, 104, 56
BENCH = ["bench", "context", "--heads", "4", "--head-dim", "32", "--group", "16", "--transfers-only",
         "threads=1"]
ONCE = BENCH + ["--tokens", "256", "--repeats", "1"]
LONG = BENCH + ["--tokens", "16384", "--repeats", "64"]  # many seconds, nearly all of them in exchanges

END_S = 60  # ranks that notice nothing wait for 300 s and more; an idle machine takes 10 s


class Broken(Exception):
    """What should hold does not."""


def free_port(draw):
    """Below the ports that the system gives to outgoing connections."""
    while True:
        port = draw.randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


class Rank:
    def __init__(self, dsv, number, size, port, key="a word", arguments=ONCE, settings=(), stderr=True):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        environment.update(RANK=str(number), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1",
                           MASTER_PORT=str(port), DSV_JOB_KEY=key, OMP_NUM_THREADS="1")
        self.number = number
        self.said_file = tempfile.TemporaryFile()
        close = (lambda: os.close(2)) if not stderr else None
        self.process = subprocess.Popen([dsv, *arguments, *settings], env=environment, preexec_fn=close,
                                        stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
                                        stderr=self.said_file if stderr else None)

    def said(self):
        self.said_file.seek(0)
        return self.said_file.read().decode(errors="replace")

    def cause(self):
        return any(line.startswith("dsv: ") for line in self.said().splitlines())

    def end(self, seconds):
        """The exit status, or None: it did not end in time."""
        try:
            return self.process.wait(max(0.01, seconds))
        except subprocess.TimeoutExpired:
            return None

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def all_end_well(ranks, seconds):
    until = time.monotonic() + seconds
    for rank in ranks:
        status = rank.end(until - time.monotonic())
        if status != 0:
            raise Broken(f"rank {rank.number} ended with {status}: {rank.said()[-300:]}")


def survivors_end(ranks, lost, seconds):
    until = time.monotonic() + seconds
    survivors = [rank for rank in ranks if rank is not lost]
    for rank in survivors:
        status = rank.end(until - time.monotonic())
        if status is None or status <= 0:
            raise Broken(f"rank {rank.number} ended with {status} after rank {lost.number} was lost: "
                         f"{rank.said()[-300:]}")
    speakers = survivors if lost.number == 0 else [rank for rank in survivors if rank.number == 0]
    for rank in speakers:
        if not rank.cause():
            raise Broken(f"rank {rank.number} gave no cause after rank {lost.number} was lost")


# ---- strangers ----

def seal(word, *parts):
    key = hashlib.blake2b(word.encode(), digest_size=32).digest()
    return hmac.new(key, b"".join(parts), hashlib.sha512).digest()[:32]


def hello(word, challenge, rank, size):
    body = MAGIC + struct.pack("<qqqq", rank, size, 0, 1) + os.urandom(32)
    return body + seal(word, challenge, body)


def receive(caller, count):
    caller.settimeout(5)
    data = b""
    while len(data) < count:
        more = caller.recv(count - len(data))
        if not more:
            break
        data += more
    return data


class Strangers:
    """Calls of one kind, again and again, until stopped. What they hear is kept."""

    def __init__(self, kind, port, size, draw):
        self.kind, self.port, self.size, self.draw = kind, port, size, draw
        self.calls, self.heard_too_much, self.held = 0, None, []
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self):
        while not self.stopping.is_set():
            try:
                with_care = socket.create_connection(("127.0.0.1", self.port), 0.5)
                self.calls += 1
                self.call(with_care)
            except OSError:
                pass
            self.stopping.wait(0.002 if self.kind in ("reset", "silent") else 0.03)

    def call(self, caller):
        draw, kind = self.draw, self.kind
        if kind == "reset":
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            caller.close()
            return
        self.held.append(caller)
        if kind == "silent":
            return
        if kind == "garbage":
            caller.sendall(draw.randbytes(draw.randrange(1, 5000)))
        elif kind == "http":
            caller.sendall(b"GET / HTTP/1.0\r\n\r\n")
        elif kind == "unproved":  # as a version without proof did
            caller.sendall(struct.pack("<IHHqq", 0x31767364, 4000, 0, 1, self.size))
        else:
            self.call_with_hello(caller)

    def call_with_hello(self, caller):
        challenge = receive(caller, CHALLENGE)
        if len(challenge) < CHALLENGE:
            return
        rank = self.draw.randrange(1, self.size)
        said = hello("another word", challenge, rank, self.size)
        if self.kind == "half":
            said = said[:self.draw.randrange(1, HELLO)]
        elif self.kind == "wrong size":
            said = hello("another word", challenge, rank, 2 ** 40)
        elif self.kind == "no word":
            said = hello("", challenge, rank, self.size)
        elif self.kind == "changed":
            place = self.draw.randrange(HELLO)
            said = said[:place] + bytes([said[place] ^ 1]) + said[place + 1:]
        caller.sendall(said)
        if self.kind == "half":
            return
        answer = receive(caller, ANSWER + 1)
        if len(answer) > ANSWER or (len(answer) == ANSWER and any(answer[16:])):
            self.heard_too_much = answer

    def stop(self):
        self.stopping.set()
        self.thread.join()
        for caller in self.held:
            caller.close()
        if self.heard_too_much:
            raise Broken(f"a stranger heard {self.heard_too_much.hex()}")


STRANGERS = ("garbage", "http", "half", "reset", "silent", "unproved", "wrong word", "wrong size", "no word",
             "changed")


def strangers(dsv, kind, draw):
    port, size = free_port(draw), draw.choice((2, 3))
    first = Rank(dsv, 0, size, port)
    callers = Strangers(kind, port, size, draw)
    ranks = [first]
    try:
        time.sleep(draw.uniform(0.3, 0.6))
        ranks += [Rank(dsv, r, size, port) for r in range(1, size)]
        all_end_well(ranks, END_S)
    finally:
        for rank in ranks:
            rank.kill()
        callers.stop()
    return callers.calls


# ---- other jobs ----

class Relay(threading.Thread):
    """Between a rank and rank 0: passes bytes on and keeps the rank's hello."""

    def __init__(self, to):
        super().__init__(daemon=True)
        self.to, self.hello = to, b""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]

    def run(self):
        caller, _ = self.listener.accept()
        while True:
            try:
                callee = socket.create_connection(("127.0.0.1", self.to), 5)
                break
            except OSError:
                time.sleep(0.02)
        back = threading.Thread(target=self.copy, args=(callee, caller, False), daemon=True)
        back.start()
        self.copy(caller, callee, True)

    def copy(self, source, sink, keep):
        try:
            while data := source.recv(65536):
                if keep and len(self.hello) < HELLO:
                    self.hello += data[:HELLO - len(self.hello)]
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def replayed(dsv, draw):
    """A hello heard on the wire is sent to the next job with the same word."""
    port = free_port(draw)
    relay = Relay(port)
    relay.start()
    ranks = [Rank(dsv, 0, 2, port), Rank(dsv, 1, 2, relay.port)]
    try:
        all_end_well(ranks, END_S)
        if len(relay.hello) < HELLO:
            raise Broken("the relay heard no hello")
        port = free_port(draw)
        ranks = [Rank(dsv, 0, 2, port)]
        until = time.monotonic() + 10
        while True:
            try:
                thief = socket.create_connection(("127.0.0.1", port), 0.5)
                break
            except OSError:
                if time.monotonic() > until:
                    raise Broken("rank 0 does not listen") from None
        receive(thief, CHALLENGE)
        thief.sendall(relay.hello)
        answer = receive(thief, ANSWER + 1)
        if len(answer) > ANSWER or any(answer[16:]):
            raise Broken(f"a replayed hello was answered {answer.hex()}")
        ranks.append(Rank(dsv, 1, 2, port))
        all_end_well(ranks, END_S)
    finally:
        for rank in ranks:
            rank.kill()
    return 1


def mixed(dsv, draw):
    """Two jobs at one port, their ranks in any order: none works with the other's ranks."""
    port = free_port(draw)
    order = [(job, r) for job in "ab" for r in range(2)]
    draw.shuffle(order)
    ranks = {}
    try:
        for job, r in order:
            ranks[job, r] = Rank(dsv, r, 2, port, key="job " + job, settings=["rank_timeout=5"])
            time.sleep(draw.uniform(0, 0.4))
        until = time.monotonic() + END_S
        status = {which: rank.end(until - time.monotonic()) for which, rank in ranks.items()}
        for (job, r), found in status.items():
            if found is None or found < 0:
                raise Broken(f"rank {r} of job {job} ended with {found}")
            if (found == 0) != (status[job, 1 - r] == 0):
                raise Broken(f"job {job} ended with {status[job, 0]} and {status[job, 1]}")
            if found != 0 and not ranks[job, r].cause():
                raise Broken(f"rank {r} of job {job} gave no cause")
    finally:
        for rank in ranks.values():
            rank.kill()
    return sum(found == 0 for found in status.values())


# ---- lost ranks ----

def lost(dsv, draw, how, met, stderr=True):
    size = draw.choice((2, 3))
    port = free_port(draw)
    settings = ["rank_timeout=3"]
    ranks = [Rank(dsv, r, size, port, arguments=LONG, settings=settings, stderr=stderr) for r in range(size)]
    victim = draw.choice(ranks)
    try:
        time.sleep(draw.uniform(1.5, 2.5) if met else draw.uniform(0, 0.5))
        if ranks[0].process.poll() is not None:
            raise Broken(f"the job ended too early: {ranks[0].said()[-300:]}")
        victim.process.send_signal(how)
        if stderr:
            survivors_end(ranks, victim, END_S)
        else:
            for rank in ranks:
                if rank is not victim and (rank.end(END_S) or 0) <= 0:
                    raise Broken(f"rank {rank.number} without stderr ended with {rank.process.returncode}")
    finally:
        for rank in ranks:
            rank.kill()
    return 1


def set_up_wrongly(dsv, draw):
    """One rank has a key that does not exist: all others end with its sentence."""
    size, port = draw.choice((2, 3)), free_port(draw)
    wrong = draw.randrange(size)
    ranks = []
    try:
        for r in draw.sample(range(size), size):
            ranks.append(Rank(dsv, r, size, port, settings=["nosuch=1"] if r == wrong else []))
            time.sleep(draw.uniform(0, 0.3))
        victim = next(rank for rank in ranks if rank.number == wrong)
        survivors_end(ranks, victim, END_S)
        for rank in ranks:
            if rank.number == 0 and "nosuch" not in rank.said():
                raise Broken(f"rank 0 does not know what was wrong: {rank.said()[-300:]}")
    finally:
        for rank in ranks:
            rank.kill()
    return 1


def other_size(dsv, draw):
    port = free_port(draw)
    ranks = [Rank(dsv, 0, 2, port), Rank(dsv, 1, 3, port)]
    try:
        for rank in ranks:
            if rank.end(END_S) in (None, 0) or not rank.cause():
                raise Broken(f"rank {rank.number} ended with {rank.process.returncode}: {rank.said()[-300:]}")
    finally:
        for rank in ranks:
            rank.kill()
    return 1


KINDS = {kind: (lambda dsv, draw, kind=kind: strangers(dsv, kind, draw)) for kind in STRANGERS}
KINDS.update({
    "replayed hello": replayed,
    "two jobs at a port": mixed,
    "killed before meeting": lambda dsv, draw: lost(dsv, draw, signal.SIGKILL, False),
    "killed after meeting": lambda dsv, draw: lost(dsv, draw, signal.SIGKILL, True),
    "stopped before meeting": lambda dsv, draw: lost(dsv, draw, signal.SIGSTOP, False),
    "stopped after meeting": lambda dsv, draw: lost(dsv, draw, signal.SIGSTOP, True),
    "killed without stderr": lambda dsv, draw: lost(dsv, draw, signal.SIGKILL, True, stderr=False),
    "set up wrongly": set_up_wrongly,
    "other number of ranks": other_size,
})


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dsv")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", help="kinds, separated by commas")
    options = parser.parse_args()
    dsv = os.path.abspath(options.dsv)
    kinds = options.only.split(",") if options.only else list(KINDS)
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"no kind {', '.join(unknown)}; there are {', '.join(KINDS)}")
    count = collections.defaultdict(lambda: [0, 0, 0, 0.0])  # rounds, broken, calls or jobs, longest
    for number in range(options.rounds):
        for kind in kinds:
            draw = random.Random(f"{options.seed} {number} {kind}")
            begin = time.monotonic()
            count[kind][0] += 1
            try:
                count[kind][2] += KINDS[kind](dsv, draw)
            except Broken as broken:
                count[kind][1] += 1
                print(f"BROKEN: {kind}, seed {options.seed}, round {number}: {broken}", flush=True)
            count[kind][3] = max(count[kind][3], time.monotonic() - begin)
    print(f"{'kind':24} {'rounds':>7} {'broken':>7} {'calls':>7} {'longest s':>10}")
    for kind, (rounds, broken, calls, longest) in count.items():
        print(f"{kind:24} {rounds:7} {broken:7} {calls:7} {longest:10.1f}")
    return 1 if any(broken for _, broken, _, _ in count.values()) else 0


sys.exit(main())
