"""A transfer whose answer is lost and whose bank cannot be asked for now; its webhook settles it. In asyncio.

It prints:

    the call: run-failed, sent: unknown
    asking: reconcile-failed
    webhook: True
    webhook, repeated: False
    the call again: tr_1, known from evidence
    transfers: 1
"""

import asyncio
from typing import Any

from counterfoil import AsyncRuntime, EffectUnresolved

transfers: list[str] = []
webhooks: "asyncio.Queue[dict[str, Any]]" = asyncio.Queue()


async def transfer(ctx) -> str:
    transfers.append(ctx.key)
    # The bank keeps our key as a reference, and will send it back.
    await webhooks.put({"reference": ctx.key, "transfer": "tr_1"})
    raise TimeoutError("no answer")


async def ask(ctx) -> str | None:
    raise ConnectionError("the bank is down for maintenance")


async def on_webhook(runtime: AsyncRuntime, message: dict[str, Any]) -> bool:
    # Check the bank's signature before this.
    return await runtime.settle(
        "invoice-9", "transfer", message["transfer"], key=message["reference"], source="bank-webhook"
    )


async def main() -> None:
    async with AsyncRuntime("memory:") as runtime, runtime.run("invoice-9") as invoice:
        try:
            await invoice.effect("transfer", run=transfer, reconcile=ask)
        except EffectUnresolved as error:
            print(f"the call: {error.reason}, sent: {error.effect_ran}")
        try:
            await invoice.effect("transfer", run=transfer, reconcile=ask)
        except EffectUnresolved as error:
            print("asking:", error.reason)

        message = await webhooks.get()
        print("webhook:", await on_webhook(runtime, message))
        print("webhook, repeated:", await on_webhook(runtime, message))

        outcome = await invoice.effect("transfer", run=transfer, reconcile=ask)
        print(f"the call again: {outcome.proof}, known from {outcome.via}")
    print("transfers:", len(transfers))


if __name__ == "__main__":
    asyncio.run(main())
