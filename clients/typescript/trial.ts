// Tries the client against a running API: `node trial.js URL KEY ENDPOINT`. Prints one line for each thing that holds.
// ../go/trial.go tells the same story, and must print the same lines; tests/integration/test_other_languages.py has them.

import assert from "node:assert/strict";
import createClient from "openapi-fetch";
import type { components, paths } from "./emq.js";

const [url, key, endpoint] = process.argv.slice(2) as [string, string, string];

function connect(key: string) {
  return createClient<paths>({ baseUrl: url, headers: { Authorization: `Bearer ${key}` } });
}

const emq = connect(key);
const tenant = "acme";
const of = { path: { tenant } };

type Answer<T> = { data?: T; error?: components["schemas"]["ProblemDetails"]; response: Response };

/** Returns the body of an answer, which must not be a refusal. */
function done<T>({ data, error }: Answer<T>): T {
  if (error !== undefined || data === undefined) throw new Error(JSON.stringify(error));
  return data;
}

/** Returns status and code of a refusal. */
function refused({ error, response }: Answer<unknown>): string {
  assert(error !== undefined, "it was not refused");
  assert.equal(response.headers.get("content-type"), "application/problem+json");
  assert.equal(error.status, response.status);
  return `${error.status} ${error.code}`;
}

async function keys() {
  console.log("a wrong key:", refused(await connect("emqk_wrong").GET("/v1/tenants")));
}

async function tenants() {
  const first = await emq.PUT("/v1/tenants/{tenant}", { params: of, body: { qps: 50, name: "Acme" } });
  const again = await emq.PUT("/v1/tenants/{tenant}", { params: of, body: { qps: 60 } });
  const { qps, name } = done(again);
  console.log(`a tenant: ${first.response.status}, then ${again.response.status} with ${qps} a second for ${name}`);
  const other = { path: { tenant: "nobody" } };
  console.log("an unknown tenant:", refused(await emq.GET("/v1/tenants/{tenant}", { params: other })));
  const wrong = await emq.PUT("/v1/tenants/{tenant}", { params: of, body: { qps: -1 } });
  console.log("a wrong value:", refused(wrong), wrong.error?.pointer);
}

async function endpoints() {
  const body = { url: endpoint, event_types: ["order.*"], qps: 40 };
  const made = done(await emq.POST("/v1/tenants/{tenant}/endpoints", { params: of, body }));
  console.log("an endpoint:", made.secret?.slice(0, 6), made.qps);
  const at = { path: { tenant, endpoint: made.id } };
  const without = done(await emq.PATCH("/v1/tenants/{tenant}/endpoints/{endpoint}", { params: at, body: { qps: null } }));
  console.log("its limit taken away:", without.qps);
}

async function messages() {
  const path = "/v1/tenants/{tenant}/messages";
  const body = { event_type: "order.paid", payload: { order: 17, amount: 12.5 } };
  const params = { ...of, header: { "Idempotency-Key": "order-17" } };
  const [one, same] = [await emq.POST(path, { params, body }), await emq.POST(path, { params, body })].map(done);
  assert(one !== undefined && "id" in one);
  assert.deepEqual(one, same);
  console.log("a message, sent twice with one key: one id");
  const stored = done(await emq.GET(`${path}/{message}`, { params: { path: { tenant, message: one.id } } }));
  console.log("its payload:", JSON.stringify(stored.payload));
  const list = [1, 2, 3, 4, 5, 6].map((order) => ({ event_type: "order.paid", payload: { order } }));
  const many = done(await emq.POST(path, { params: of, body: { messages: list } }));
  assert("data" in many);
  console.log("messages in one request:", many.data.length);
}

async function deliveries() {
  let [count, pages, cursor] = [0, 0, ""];
  for (;;) {
    const query = { limit: 2, cursor, "created[gte]": new Date(0).toISOString() };
    const page = done(await emq.GET("/v1/tenants/{tenant}/deliveries", { params: { ...of, query } }));
    count += page.data.length;
    pages += 1;
    if (page.next === null) break;
    cursor = page.next;
  }
  console.log(`deliveries: ${count} on ${pages} pages`);
  const query = { state: "delivered" as const };
  for (let left = 200; ; left -= 1) {
    const page = done(await emq.GET("/v1/tenants/{tenant}/deliveries", { params: { ...of, query } }));
    if (page.data.length === count) break;
    assert(left > 0, `only ${page.data.length} were delivered`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  console.log("all are delivered");
}

async function pools() {
  const pool = "sms";
  const limits = [{ name: "messages", amount: 5, per: "second" as const }];
  const body = { name: pool, types: { code: {} }, resources: { north: { limits, takes: { code: {} } } } };
  const made = done(await emq.PUT("/v1/pools/{pool}", { params: { path: { pool } }, body }));
  console.log("a pool: version", made.version);
  const old = { path: { pool, name: "north" }, header: { "If-Match": '"7"' } };
  const changed = await emq.PATCH("/v1/pools/{pool}/resources/{name}", { params: old, body: { price: 2 } });
  console.log("a change of another version:", refused(changed));
}

async function tasks() {
  const pool = "sms";
  const path = "/v1/pools/{pool}/tasks";
  const params = { path: { pool } };
  const one = done(await emq.POST(path, { params, body: { id: "t1", type: "code", payload: { to: "+49" } } }));
  assert("id" in one);
  const at = { path: { pool, task: one.id }, query: { type: "code" } };
  const task = done(await emq.GET("/v1/pools/{pool}/tasks/{task}", { params: at }));
  console.log(`a task: ${task.id}, attempts ${task.attempts.length}`);
  const list = ["code", "none"].map((type) => ({ type, payload: 1 }));
  const many = done(await emq.POST(path, { params, body: { tasks: list } }));
  assert("accepted" in many);
  console.log(`tasks: ${many.accepted} accepted, ${many.refused} refused as ${many.data[1]?.problem?.code}`);
}

async function end() {
  const gone = await emq.DELETE("/v1/tenants/{tenant}", { params: of });
  console.log("the tenant deleted:", gone.response.status);
}

for (const part of [keys, tenants, endpoints, messages, deliveries, pools, tasks, end]) await part();
