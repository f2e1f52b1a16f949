// The pet store as one would write it with Fastify and better-sqlite3, for comparison: routes with schemas, as
// Fastify's documentation advises for speed, its plugins for keys and limits, prepared statements, and a write-ahead
// log, as better-sqlite3's documentation advises. It runs in one process, since it has one core.
import bearerAuth from "@fastify/bearer-auth";
import rateLimit from "@fastify/rate-limit";
import Database from "better-sqlite3";
import Fastify from "fastify";

const { DB, KEY, PORT, SYNCHRONOUS } = process.env;

const db = new Database(DB);
db.pragma("journal_mode = WAL");
db.pragma(`synchronous = ${SYNCHRONOUS}`);
const columns = "SELECT id, name, categoryId, status FROM pets";
const list = db.prepare(`${columns} WHERE id > ? ORDER BY id LIMIT ?`);
const filtered = db.prepare(`${columns} WHERE status = ? AND id > ? ORDER BY id LIMIT ?`);
const get = db.prepare(`${columns} WHERE id = ?`);
const insert = db.prepare("INSERT INTO pets (name, categoryId, status) VALUES (?, ?, ?)");

const status = { type: "string", enum: ["available", "pending", "sold"] };
const members = { name: { type: "string", minLength: 1, maxLength: 200 }, categoryId: { type: "integer" }, status };
const pet = { type: "object", properties: { id: { type: "integer" }, ...members } };
const newPet = { type: "object", properties: members, required: ["name", "categoryId"], additionalProperties: false };
const page = {
	type: "object",
	properties: {
		limit: { type: "integer", minimum: 1, maximum: 100, default: 20 },
		after: { type: "integer", minimum: 0, default: 0 },
		status,
	},
};
const one = { type: "object", properties: { id: { type: "integer" } } };

const app = Fastify({ logger: false });
await app.register(bearerAuth, { keys: new Set([KEY]) });
await app.register(rateLimit, {
	max: 1_000_000_000,
	timeWindow: "1 minute",
	keyGenerator: (request) => request.headers.authorization,
});

app.get("/v1/pets", { schema: { querystring: page, response: { 200: { type: "array", items: pet } } } },
	async ({ query }) => query.status
		? filtered.all(query.status, query.after, query.limit)
		: list.all(query.after, query.limit));

app.get("/v1/pets/:id", { schema: { params: one, response: { 200: pet } } }, async ({ params }, reply) => {
	const found = get.get(params.id);
	if (!found) reply.code(404);
	return found ?? { message: "there is no such pet" };
});

app.post("/v1/pets", { schema: { body: newPet, response: { 201: pet } } }, async ({ body }, reply) => {
	const added = { status: "available", ...body };
	const { lastInsertRowid } = insert.run(added.name, added.categoryId, added.status);
	reply.code(201);
	return { id: lastInsertRowid, ...added };
});

await app.listen({ host: "127.0.0.1", port: Number(PORT) });
