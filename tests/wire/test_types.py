"""What type checkers see of immediate operations and HTTP: mypy checks this file with the others."""

from __future__ import annotations

from typing import Any, assert_type

from counterfoil import HTTP, AsyncBroker, Broker, Outcome, Recipient, Runtime

mail = Recipient("mail")


@mail.operation
def send(ctx: Any, to: str) -> str:
    return to


def blocking(broker: Broker, runtime: Runtime) -> None:
    with broker.activation() as activation:
        assert_type(activation.perform(HTTP().post("https://api.example.com/")), Outcome[Any])
        assert_type(activation.perform(send(to="ada")), Outcome[str])
    with runtime.run("r") as run:
        assert_type(run.effect("post", HTTP().post("https://api.example.com/")), Outcome[Any])


async def awaited(broker: AsyncBroker) -> None:
    async with broker.activation() as activation:
        assert_type(await activation.perform(HTTP().post("https://api.example.com/")), Outcome[Any])
        assert_type(await activation.perform(send(to="ada")), Outcome[str])


def test_the_cases_run() -> None:
    with Broker() as broker, Runtime("memory:") as runtime:
        blocking(broker, runtime)
