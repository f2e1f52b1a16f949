// A tour of the service as a TypeScript caller takes it: openapi-fetch with the
// types that openapi-typescript makes of /openapi.json. clients_description_test.go type-checks
// it and runs it against the service. It ends with status 1 and one line at the
// first answer that is not as described.
//
// A wrong request stands below a ts-expect-error: the types must refuse it, and
// so must the service.

import createClient, { type Middleware } from "openapi-fetch";
import type { components, operations, paths } from "./generated/schema.js";

type Pet = components["schemas"]["Pet"];
type NewPet = components["schemas"]["NewPet"];
type ApiError = components["schemas"]["Error"];
type HeaderName = keyof components["headers"];

// The statuses that the description has for an operation.
type Status<Operation extends keyof operations> = keyof operations[Operation]["responses"] & number;

function check(ok: boolean, message: string): asserts ok {
  if (ok) return;
  console.error(message);
  process.exit(1);
}

function setting(name: string): string {
  const value = process.env[name];
  check(value !== undefined && value !== "", `${name} is not set`);
  return value;
}

const baseUrl = setting("PETSTORE_URL"); // up to and including /v1
const key = setting("PETSTORE_KEY"); // with limits that the tour does not reach
const smallKey = setting("PETSTORE_SMALL_KEY"); // of the plan enterprise, 2 requests a minute

function header(response: Response, name: HeaderName): string {
  const value = response.headers.get(name);
  check(value !== null, `${response.url}: ${response.status} has no ${name}`);
  return value;
}

function integer(response: Response, name: HeaderName): number {
  const value = header(response, name);
  check(/^\d+$/.test(value), `${response.url}: ${name} is ${value}`);
  return Number(value);
}

// What every answer carries, whatever it says.
const everyAnswer: Middleware = {
  onResponse({ response }) {
    const limit = integer(response, "X-RateLimit-Limit");
    const remaining = integer(response, "X-RateLimit-Remaining");
    const reset = integer(response, "X-RateLimit-Reset");
    const now = Date.now() / 1000;
    check(remaining <= limit, `${response.url}: ${remaining} of ${limit} requests are left`);
    check(reset > now - 2 && reset < now + 86_402, `${response.url}: X-RateLimit-Reset is ${reset} at ${now}`);
    header(response, "RateLimit");
    header(response, "RateLimit-Policy");
    header(response, "X-Request-Id");
  },
};

function clientFor(apiKey?: string) {
  const client = createClient<paths>({
    baseUrl,
    headers: apiKey === undefined ? {} : { Authorization: `Bearer ${apiKey}` },
  });
  client.use(everyAnswer);
  return client;
}

// A refused request: its status is one that the description has for the
// operation, and the error says the same.
function refused<Operation extends keyof operations>(
  operation: Operation,
  answer: { error?: ApiError; response: Response },
  status: Status<Operation>,
  code: ApiError["code"],
): ApiError {
  const { error, response } = answer;
  check(response.status === status, `${operation}: status ${response.status}, not ${status}`);
  check(error !== undefined, `${operation}: ${status} without an Error`);
  check(Object.keys(error).sort().join() === "code,message,status", `${operation}: ${status} with ${JSON.stringify(error)}`);
  check(error.code === code, `${operation}: code ${error.code}, not ${code}`);
  check(error.status === status, `${operation}: ${status} says that it is ${error.status}`);
  check(error.message !== "", `${operation}: ${status} without a message`);
  return error;
}

function samePet(got: Pet | undefined, want: Pet, where: string): void {
  const show = (pet: Pet | undefined) => JSON.stringify(pet && [pet.id, pet.name, pet.categoryId, pet.status]);
  check(show(got) === show(want), `${where}: ${show(got)}, not ${show(want)}`);
}

const client = clientFor(key);

// Create.
const created: Pet[] = [];
const newPets: NewPet[] = [
  { name: "Rex", categoryId: 7 }, // the types let status be left out
  { name: "Tom", categoryId: -3, status: "sold" },
  { name: "Zoë 🐈", categoryId: 0, status: "pending" },
  { name: "Ada", categoryId: 7, status: "available" },
  { name: "Bo", categoryId: 7, status: "available" },
  { name: "Cy", categoryId: 7, status: "available" },
  { name: "Di", categoryId: 7, status: "available" },
];
for (const body of newPets) {
  const { data, error, response } = await client.POST("/pets", { body });
  check(data !== undefined, `createPet: ${JSON.stringify(error)}`);
  check(response.status === 201, `createPet: status ${response.status}`);
  samePet(data, { ...body, id: data.id, status: body.status ?? "available" }, "createPet");
  const location = new URL(header(response, "Location"), baseUrl).href;
  check(location === `${baseUrl}/pets/${data.id}`, `createPet: Location is ${location}`);
  created.push(data);
}
const available = created.filter((pet) => pet.status === "available");

// List by status, two at a time, along Link to the end.
type Query = NonNullable<operations["listPets"]["parameters"]["query"]>;
const listed: Pet[] = [];
const first: Query = { limit: 2, status: "available" };
for (let query: Query | undefined = first, pages = 0; query !== undefined; pages++) {
  check(pages < 10, "listPets: Link does not end");
  const { data, error, response }: Awaited<ReturnType<typeof listPage>> = await listPage(query);
  check(data !== undefined, `listPets: ${JSON.stringify(error)}`);
  check(data.length === 2 || !response.headers.has("Link"), `listPets: ${data.length} animals before the last page`);
  listed.push(...data);
  query = nextPage(response);
}
check(listed.length === available.length, `listPets: ${listed.length} animals, not ${available.length}`);
listed.forEach((pet, i) => samePet(pet, available[i]!, "listPets"));

function listPage(query: Query) {
  return client.GET("/pets", { params: { query } });
}

// nextPage reads a Link of rel next, which repeats the filter.
function nextPage(response: Response): Query | undefined {
  const link = response.headers.get("Link");
  if (link === null) return undefined;
  const target = /^<([^>]+)>; rel="next"$/.exec(link)?.[1];
  check(target !== undefined, `listPets: Link is ${link}`);
  const url = new URL(target, baseUrl);
  check(url.origin + url.pathname === `${baseUrl}/pets`, `listPets: Link leads to ${url}`);
  check(url.searchParams.get("limit") === "2", `listPets: Link leads to ${url}`);
  check(url.searchParams.get("status") === "available", `listPets: Link leads to ${url}`);
  return { ...first, after: Number(url.searchParams.get("after")) };
}

// Get, and get again only if it changed.
const [rex] = created;
check(rex !== undefined, "createPet: nothing created");
{
  const path = { petId: rex.id };
  const { data, response } = await client.GET("/pets/{petId}", { params: { path } });
  samePet(data, rex, "getPet");
  check(header(response, "Deprecation") === "@1795132800", "getPet: Deprecation");
  check(header(response, "Sunset") === "Thu, 05 Dec 2030 00:00:00 GMT", "getPet: Sunset");

  const etag = header(response, "ETag");
  const again = await client.GET("/pets/{petId}", { params: { path, header: { "If-None-Match": etag } } });
  const notModified: Status<"getPet"> = 304;
  check(again.response.status === notModified, `getPet: status ${again.response.status} for If-None-Match`);
}

// Each error.
{
  // @ts-expect-error categoryId is missing
  const answer = await client.POST("/pets", { body: { name: "Rex" } });
  const { message } = refused("createPet", answer, 400, "invalid_body");
  check(message.includes("categoryId"), `createPet: the message is ${message}`);
}
{
  // @ts-expect-error not a status
  const answer = await client.POST("/pets", { body: { name: "Rex", categoryId: 7, status: "lost" } });
  refused("createPet", answer, 400, "invalid_body");
}
{
  // An unknown member, which openapi-fetch's types let pass.
  const answer = await client.POST("/pets", { body: { name: "Rex", categoryId: 7, colour: "red" } });
  refused("createPet", answer, 400, "invalid_body");
}
{
  // @ts-expect-error not a status
  const answer = await client.GET("/pets", { params: { query: { status: "lost" } } });
  refused("listPets", answer, 400, "invalid_parameter");
}
refused("listPets", await client.GET("/pets", { params: { query: { limit: 101 } } }), 400, "invalid_parameter");
{
  const missing = await clientFor().GET("/pets");
  refused("listPets", missing, 401, "missing_key");
  check(header(missing.response, "WWW-Authenticate") === 'Bearer realm="petstore"', "listPets: WWW-Authenticate");
  refused("listPets", await clientFor("nonsense").GET("/pets"), 401, "invalid_key");
  refused("createPet", await clientFor("nonsense").POST("/pets", { body: { name: "Rex", categoryId: 7 } }), 401, "invalid_key");
}
refused("getPet", await client.GET("/pets/{petId}", { params: { path: { petId: 9e9 } } }), 404, "not_found");
{
  // @ts-expect-error the description has no such operation
  const answer = await client.DELETE("/pets");
  check(answer.response.status === 405, `DELETE /pets: status ${answer.response.status}`);
  check(header(answer.response, "Allow") === "GET, HEAD, POST", "DELETE /pets: Allow");
}
{
  const body: NewPet = { name: "x".repeat(70_000), categoryId: 7 };
  refused("createPet", await client.POST("/pets", { body }), 413, "body_too_large");
}
{
  const answer = await client.POST("/pets", {
    body: { name: "Rex", categoryId: 7 },
    headers: { "Content-Type": "text/plain" },
  });
  refused("createPet", answer, 415, "unsupported_media_type");
}
{
  const params = { header: { "Idempotency-Key": "tour-1" } };
  const once = await client.POST("/pets", { params, body: { name: "Eve", categoryId: 7 } });
  const twice = await client.POST("/pets", { params, body: { name: "Eve", categoryId: 7 } });
  check(once.data !== undefined, `createPet: ${JSON.stringify(once.error)}`);
  samePet(twice.data, once.data, "createPet, repeated");
  check(!once.response.headers.has("Idempotency-Replayed"), "createPet: replayed at first");
  check(header(twice.response, "Idempotency-Replayed") === "true", "createPet: not replayed");
  refused("createPet", await client.POST("/pets", { params, body: { name: "Eva", categoryId: 7 } }), 422, "idempotency_key_reused");
}
{
  const small = clientFor(smallKey);
  for (const left of [1, 0]) {
    const { response } = await small.GET("/pets", { params: { query: { limit: 1 } } });
    check(response.status === 200, `listPets: status ${response.status} within the limit`);
    check(integer(response, "X-RateLimit-Limit") === 2, "listPets: X-RateLimit-Limit");
    check(integer(response, "X-RateLimit-Remaining") === left, "listPets: X-RateLimit-Remaining");
  }
  // The first refusal is no strike. The third strike is more than 2 a minute, and bans.
  for (const code of ["rate_limited", "rate_limited", "rate_limited", "key_banned"] as const) {
    const answer = await small.GET("/pets");
    refused("listPets", answer, 429, code);
    check(integer(answer.response, "X-RateLimit-Remaining") === 0, "listPets: requests left at 429");
    const wait = integer(answer.response, "Retry-After");
    check(wait >= 1 && wait <= (code === "key_banned" ? 600 : 60), `listPets: Retry-After is ${wait} at ${code}`);
  }
}

console.log("the tour is complete");
