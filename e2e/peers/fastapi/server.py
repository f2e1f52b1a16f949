"""The pet store as one would write it with FastAPI and Python's sqlite3, for comparison.

As FastAPI's documentation advises for speed, operations return a response directly, written by ujson, and uvicorn runs
with uvloop and httptools; HTTPBearer and compare_digest check the key. FastAPI has no limiter, so a counter for each
key stands here. Operations are "async def", although sqlite3 blocks: FastAPI's threads cost more than what they wait
for here. One process, since it has one core.
"""

import os
import secrets
import sqlite3
import time
from typing import Literal

from fastapi import Depends, FastAPI, HTTPException, Query
from fastapi.responses import UJSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, Extra, Field

KEY = os.environ["KEY"]
LIMIT = 1_000_000_000  # requests in a minute
COLUMNS = "SELECT id, name, categoryId, status FROM pets"

db = sqlite3.connect(os.environ["DB"], isolation_level=None)
db.row_factory = lambda cursor, row: {"id": row[0], "name": row[1], "categoryId": row[2], "status": row[3]}
db.execute("PRAGMA journal_mode = WAL")
db.execute("PRAGMA synchronous = " + os.environ["SYNCHRONOUS"])

Status = Literal["available", "pending", "sold"]
used: dict[str, list] = {}  # the end of the minute and the requests in it, by key
bearer = HTTPBearer()


class NewPet(BaseModel, extra=Extra.forbid):
    name: str = Field(min_length=1, max_length=200)
    categoryId: int
    status: Status = "available"


async def admit(given: HTTPAuthorizationCredentials = Depends(bearer)):
    key = given.credentials
    if not secrets.compare_digest(key.encode(), KEY.encode()):
        raise HTTPException(401, "the key is not known")
    now = time.monotonic()
    window = used.get(key)
    if window is None or now >= window[0]:
        window = used[key] = [now + 60, 0]
    if window[1] >= LIMIT:
        raise HTTPException(429, "the limit is used up")
    window[1] += 1


app = FastAPI(dependencies=[Depends(admit)], openapi_url=None)


@app.get("/v1/pets", response_class=UJSONResponse)
async def list_pets(status: Status | None = None, limit: int = Query(20, ge=1, le=100), after: int = Query(0, ge=0)):
    if status:
        rows = db.execute(COLUMNS + " WHERE status = ? AND id > ? ORDER BY id LIMIT ?", (status, after, limit))
    else:
        rows = db.execute(COLUMNS + " WHERE id > ? ORDER BY id LIMIT ?", (after, limit))
    return UJSONResponse(rows.fetchall())


@app.get("/v1/pets/{pet_id}", response_class=UJSONResponse)
async def get_pet(pet_id: int):
    found = db.execute(COLUMNS + " WHERE id = ?", (pet_id,)).fetchone()
    if found is None:
        raise HTTPException(404, "there is no such pet")
    return UJSONResponse(found)


@app.post("/v1/pets", response_class=UJSONResponse)
async def add_pet(pet: NewPet):
    row = (pet.name, pet.categoryId, pet.status)
    added = db.execute("INSERT INTO pets (name, categoryId, status) VALUES (?, ?, ?)", row).lastrowid
    return UJSONResponse({"id": added, "name": row[0], "categoryId": row[1], "status": row[2]}, 201)
