"""What is told of a stream whose promises are weak, by `Events.diagnose` and `counterfoil events doctor`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from counterfoil import Events
from counterfoil.cli.commands import program
from counterfoil.errors import RecipientError
from counterfoil.recipients.events.diagnosis import diagnose
from tests.events.support import Stream
from tests.servers.nats import NatsCluster
from tests.servers.starting import free_ports
from tests.support import in_thread


def told(stream: Stream) -> dict[str, tuple[str, str, str]]:
    with Events(stream.url, stream=stream.name) as events:
        return {subject: (level, found, mend) for level, subject, found, mend in events.diagnose()}


def ran(*words: str, **environment: str) -> Result:
    return CliRunner().invoke(program, ["events", "doctor", *words], env=environment)


@pytest.mark.rule("N3", "V1")
async def test_a_plain_stream_has_one_copy_and_nothing_else_that_is_weak(nats: NatsCluster):
    stream = await Stream.make(nats.url)
    found = await in_thread(lambda: told(stream))
    weak = {subject for subject, (level, *_) in found.items() if level != "ok"}
    assert weak == {"replicas"}
    assert "one server" in found["replicas"][1]
    assert found["duplicate-window"][1].startswith("120 s")


@pytest.mark.rule("N3")
@pytest.mark.parametrize(
    ("settings", "subject", "level", "word"),
    [
        ({"max_msgs": 10}, "limits", "warning", "max_msgs=10"),
        ({"max_age": 60}, "limits", "warning", "max_age_s=60"),
        ({"max_msgs": 10, "discard": "new"}, "limits", "ok", "not taken"),
        ({"retention": "workqueue"}, "retention", "warning", "consumed"),
        ({"retention": "interest"}, "retention", "warning", "consumed"),
        ({"storage": "memory"}, "storage", "warning", "restart"),
        ({"duplicate_window": 1}, "duplicate-window", "warning", "1 s"),
        ({"no_ack": True}, "no-ack", "error", "refused"),
    ],
)
async def test_each_weak_setting_is_named_with_what_it_means_and_its_mend(
    nats: NatsCluster, settings: dict[str, Any], subject: str, level: str, word: str
):
    stream = await Stream.make(nats.url, **settings)
    found = await in_thread(lambda: told(stream))
    assert found[subject][0] == level
    assert word in found[subject][1]
    assert bool(found[subject][2]) == (level != "ok")


@pytest.mark.rule("N3")
async def test_a_sealed_stream_is_an_error(nats: NatsCluster):
    stream = await Stream.make(nats.url)
    await stream.update(sealed=True)
    found = await in_thread(lambda: told(stream))
    assert found["sealed"][0] == "error"


@pytest.mark.rule("N3")
def test_a_replica_that_lags_and_an_answer_that_cannot_be_read_are_told():
    config = {"retention": "limits", "storage": "file", "num_replicas": 3}
    replicas = [{"name": "a", "current": True}, {"name": "b", "current": False}, {"name": "c", "offline": True}]
    found = {said[1]: said for said in diagnose({"config": config, "cluster": {"replicas": replicas}}, version="2")}
    assert found["replicas"][0] == "ok"
    assert found["replicas-behind"][2] == "b, c"
    assert diagnose({}, version="2")[1][0] == "error"


@pytest.mark.rule("N3")
async def test_the_command_says_it_with_how_the_servers_sync_and_an_exit_code(nats: NatsCluster):
    stream = await Stream.make(nats.url)
    monitor = f"http://127.0.0.1:{nats.nodes[0].monitor}"
    url = f"{nats.url}/{stream.name}"
    said = await in_thread(lambda: ran(url, "--monitor", monitor, "--json"))
    assert said.exit_code == 0, said.output
    found = {one["subject"]: one for one in json.loads(said.stdout)["findings"]}
    assert found["sync-interval"]["found"].startswith("not always")
    assert found["replicas"]["level"] == "warning"
    shown = await in_thread(lambda: ran(url, "--monitor", monitor))
    assert "sync-interval" in shown.stdout
    assert "weak" in shown.stderr
    missing = await in_thread(lambda: ran(f"{nats.url}/NOBODY", "--json"))
    assert missing.exit_code == 1
    assert "not found" in missing.stdout


@pytest.mark.rule("N3", "B9")
@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["nats://127.0.0.1:4222"], "names no stream"),
        (["amqp://127.0.0.1/x"], "only streams of NATS"),
        (["nats://me:hush@127.0.0.1:4222/S"], "not part of the address"),
        (["nats://127.0.0.1:4222/S", "--user", "me"], "a user has a password"),
    ],
)
def test_what_cannot_be_looked_at_is_said_and_no_password_repeated(words: list[str], what: str):
    said = ran(*words)
    assert said.exit_code == 2
    assert what in said.stderr
    assert "hush" not in said.stderr + said.stdout


@pytest.mark.rule("N3")
def test_a_server_that_is_not_there_is_an_error_of_the_recipient():
    with (
        Events(f"nats://127.0.0.1:{free_ports(1)[0]}", stream="S") as events,
        pytest.raises(RecipientError, match="connect-failed"),
    ):
        events.diagnose()
