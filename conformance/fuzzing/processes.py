"""A campaign on several processes of this machine, which take one round after the other.

A process that ends in the middle of a round costs nothing: the round is played again by another one, with the backend
in a worker of its own, where it can be seen which example it is.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import msgspec

from conformance.backends.protocol import BackendInfo, Unsupported
from conformance.errors import BackendError
from conformance.fuzzing.campaign import Campaign, Ledger, Order, stage
from conformance.fuzzing.rounds import Example
from conformance.judging.engine import Outcome
from conformance.running.isolation import Ready, Setup, Unusable
from conformance.spec.case import Case

LOOK = 0.2  # seconds between two looks at the clock


class Begin(msgspec.Struct, frozen=True, tag=True):
    """An example is about to run."""

    key: str
    case: Case


class Done(msgspec.Struct, frozen=True, tag=True):
    """It has run."""

    outcome: Outcome


class Over(msgspec.Struct, frozen=True, tag=True):
    """The round is played."""


Message = Ready | Unusable | Begin | Done | Over
_decode = msgspec.msgpack.Decoder(Message).decode


@dataclass
class Player:
    """One process, the round it plays, and the example it is at."""

    process: SpawnProcess
    pipe: Connection
    order: Order | None = None
    at: Begin | None = None

    def take(self, order: Order) -> None:
        self.order = order
        self.pipe.send_bytes(msgspec.msgpack.encode(order))


class Crew:
    """Processes that play rounds."""

    def __init__(self, campaign: Campaign, setup: Setup) -> None:
        """Start the first process. Raises `BackendError` and `Unsupported` when there is no backend."""
        self.campaign, self.setup = campaign, setup
        self.players: list[Player] = []
        first = self._start(isolate=campaign.isolation.isolate)
        ready = self._receive(first)
        if not isinstance(ready, Ready):
            raise BackendError(f"'{setup.connect}': its process ends before it is ready")
        self.info: BackendInfo = ready.info
        self.environment = ready.environment

    def conduct(self, ledger: Ledger) -> None:
        """Play all rounds, the saved cases first. Raises `BackendError` when processes do not come up any more."""
        saved = tuple(ledger.saved.cases()) if ledger.saved else ()
        first = [Order(saved=saved)] if saved else []
        orders = chain(first, self.campaign.orders())
        self._hand_out(self.players[0], orders)
        for _ in range(1, self.campaign.isolation.jobs):
            order = next(orders, None)
            if order is not None:
                self._start(isolate=self.campaign.isolation.isolate).order = order  # taken when it is ready
        while self.players and not ledger.over:
            for pipe in wait([player.pipe for player in self.players], LOOK):
                player = next(player for player in self.players if player.pipe is pipe)
                message = self._receive(player)
                if isinstance(message, Ready):
                    if player.order:
                        player.take(player.order)
                elif isinstance(message, Begin):
                    player.at = message
                    ledger.begin(message.key, message.case)
                elif isinstance(message, Done) and player.at:
                    if ledger.done(Example(player.at.key, player.at.case, message.outcome)):
                        break
                elif isinstance(message, Over):
                    self._hand_out(player, orders)
                elif message is None:
                    self._replace(player)

    def close(self) -> None:
        """End all processes, also in the middle of an example."""
        for player in self.players:
            player.process.kill()
        for player in self.players:
            player.process.join()
            player.pipe.close()
        self.players.clear()

    def _start(self, *, isolate: bool) -> Player:
        ours, theirs = get_context("spawn").Pipe()
        setup = msgspec.msgpack.encode(self.setup)
        process = get_context("spawn").Process(
            target=serve, args=(theirs, setup, self.campaign.seed, isolate), daemon=True
        )
        process.start()
        theirs.close()
        player = Player(process, ours)
        self.players.append(player)
        return player

    def _receive(self, player: Player) -> Message | None:
        """The next message, None when the process is gone. Raises what kept the backend from being used."""
        try:
            message = _decode(player.pipe.recv_bytes())
        except (EOFError, OSError):
            return None
        if isinstance(message, Unusable):
            if message.feature:
                raise Unsupported(message.feature, message.reason, message.url)
            raise BackendError(message.reason)
        return message

    def _hand_out(self, player: Player, orders: Iterator[Order]) -> None:
        order = next(orders, None)
        if order is not None:
            player.take(order)
        else:
            self._leave(player)

    def _replace(self, player: Player) -> None:
        """Have the round of a process that is gone played by another one, isolated."""
        order = player.order
        self._leave(player)
        if order is None:
            raise BackendError(f"'{self.setup.connect}': a process ends before it is ready")
        if order.isolate:
            raise BackendError(
                f"'{self.setup.connect}': the process of the campaign itself ends, in round {order.round}"
            )
        self._start(isolate=True).order = msgspec.structs.replace(order, isolate=True)

    def _leave(self, player: Player) -> None:
        player.pipe.close()
        player.process.join(2)
        player.process.kill()
        self.players.remove(player)


def serve(pipe: Connection, setup: bytes, seed: int, isolate: bool) -> None:
    """Inside a process of the crew: orders in, examples out, until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the crew decides

    def send(message: Message) -> None:
        pipe.send_bytes(msgspec.msgpack.encode(message))

    def done(example: Example) -> bool:
        send(Done(example.outcome))
        return False

    try:
        with stage(msgspec.msgpack.decode(setup, type=Setup), isolate=isolate) as here:
            send(Ready(here.info, here.environment))
            while True:
                order = msgspec.msgpack.decode(pipe.recv_bytes(), type=Order)
                here.play(seed, order, done, lambda key, case: send(Begin(key, case)))
                send(Over())
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Unsupported as missing:
        send(Unusable(missing.reason, missing.feature, missing.url))
    except BackendError as error:
        send(Unusable(str(error)))
