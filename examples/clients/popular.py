"""One request through each of the popular clients, as their first page of documentation does it.

Each function is tried with every misbehaviour of the fault peer by

    counterfoil audit-client examples/clients/popular.py:requests_session --method POST

in an environment that has the client. Nothing is configured but a time-out of three seconds.
"""

BODY = b'{"cents": 700}'
TIMEOUT_S = 3.0


def urllib_request(url, method="PUT"):
    from urllib.request import Request, urlopen

    with urlopen(Request(url, data=BODY, method=method), timeout=TIMEOUT_S) as answer:
        answer.read()


def urllib3_pool(url, method="PUT"):
    import urllib3

    urllib3.PoolManager().request(method, url, body=BODY, timeout=TIMEOUT_S)


def requests_session(url, method="PUT"):
    import requests

    with requests.Session() as session:
        session.request(method, url, data=BODY, timeout=TIMEOUT_S)


async def aiohttp_session(url, method="PUT"):
    import aiohttp

    limit = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=limit) as session, session.request(method, url, data=BODY) as answer:
        await answer.read()


def httpx2_client(url, method="PUT"):
    import httpx2

    with httpx2.Client(timeout=TIMEOUT_S) as client:
        client.request(method, url, content=BODY)


def httpx2_http2(url, method="PUT"):
    import httpx2

    with httpx2.Client(timeout=TIMEOUT_S, http1=False, http2=True) as client:
        client.request(method, url, content=BODY)


def boto3_put_object(url, method="PUT"):
    """Amazon S3: the method is always PUT."""
    _boto3("s3", url).put_object(Bucket="bucket", Key="orders", Body=BODY)


def boto3_send_message(url, method="POST"):
    """Amazon SQS: the method is always POST."""
    _boto3("sqs", url).send_message(QueueUrl=url, MessageBody=BODY.decode())


def _boto3(service, url):
    import boto3
    from botocore.config import Config

    return boto3.session.Session().client(
        service,
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="id",
        aws_secret_access_key="secret",
        config=Config(read_timeout=TIMEOUT_S, connect_timeout=TIMEOUT_S),
    )
