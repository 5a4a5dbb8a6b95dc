// BullMQ: a queue and a worker for each tenant, with shared connections for commands; several processes. See common.py.
import cluster from "node:cluster";
import { createRequire } from "node:module";
import fs from "node:fs";

const require = createRequire(process.env.NODE_PATH + "/");
const { Queue, Worker } = require("bullmq");
const IORedis = require("ioredis");

const orders = {
  queues: 1, first_queue: 0, messages: 0, per_s: 0, limit_s: 20, wait_s: 0, processes: 1, in_flight: 1000, cap: 0,
  counter: "", log: "", ...JSON.parse(process.env.PEERS_ORDERS),
};
const BATCH = orders.queues === 1 ? 500 : 10;  // jobs of one queue in a call
const now = () => Date.now() / 1000;
const seconds = () => performance.now() / 1000;
const pause = (s) => new Promise((resolve) => setTimeout(resolve, s * 1000));
const queueOf = (number) => orders.first_queue + (number % orders.queues);
const payload = (number) => `${number} ${queueOf(number)} ${now().toFixed(6)} `.padEnd(100, "x");
const connect = () => new IORedis(orders.url, { maxRetriesPerRequest: null });

// The numbers in batches of at most this size, each of one queue, in turn of each queue.
function* batches(size) {
  const { queues, messages } = orders;
  for (let first = 0; first < messages; first += size * queues)
    for (let start = first; start < Math.min(first + queues, messages); start++) {
      const numbers = [];
      for (let n = start; n < Math.min(first + size * queues, messages); n += queues) numbers.push(n);
      yield numbers;
    }
}

async function publish() {
  const connection = connect();
  const queues = new Map();
  for (let i = orders.first_queue; i < orders.first_queue + orders.queues; i++)
    queues.set(i, new Queue(`t-${i}`, { connection, defaultJobOptions: { removeOnComplete: true, removeOnFail: true } }));
  await queues.get(orders.first_queue)?.waitUntilReady();
  const began = seconds();
  let published = 0;
  const size = orders.per_s ? 1 : BATCH;
  const due = batches(size);
  const publisher = async () => {
    for (let batch = due.next(); !batch.done; batch = due.next()) {
      const numbers = batch.value, first = numbers[0];
      if (orders.per_s) await pause(Math.max(0, began + first / orders.per_s - seconds()));
      if (seconds() - began > orders.limit_s) return;
      const jobs = numbers.map((n) => ({ name: "handle", data: payload(n) }));
      const queue = queues.get(queueOf(first));
      if (jobs.length === 1) await queue.add("handle", jobs[0].data);
      else await queue.addBulk(jobs);
      published += numbers.length;
    }
  };
  await Promise.all(Array.from({ length: size === 500 ? 4 : 100 }, publisher));
  console.log(JSON.stringify({ published, published_s: seconds() - began }));
  process.exit(0);
}

function work() {
  const connection = connect();
  const log = orders.log ? fs.openSync(orders.log, "a") : -1;
  const counter = fs.openSync(orders.counter, "r+");
  const slot = cluster.worker?.id ?? 1;
  const cell = Buffer.alloc(8);
  let started = 0, written = 0;
  setInterval(() => {
    if (started === written) return;
    written = started;
    cell.writeBigUInt64LE(BigInt(started));
    fs.writeSync(counter, cell, 0, 8, slot * 8);
  }, 5);
  const report = (kind, data) => {
    if (log >= 0) fs.writeSync(log, `${kind} ${now().toFixed(6)} ${data.slice(0, data.lastIndexOf(" "))}\n`);
  };
  const handle = async (job) => {
    started++;
    report("b", job.data);
    if (orders.wait_s) await pause(orders.wait_s);
    report("e", job.data);
  };
  const perQueue = Math.max(1, Math.floor(orders.in_flight / orders.processes / orders.queues));
  const limiter = orders.cap ? { limiter: { max: orders.cap, duration: 1000 } } : {};
  for (let i = orders.first_queue; i < orders.first_queue + orders.queues; i++)
    new Worker(`t-${i}`, handle, {
      connection, concurrency: perQueue, removeOnComplete: { count: 0 }, removeOnFail: { count: 0 }, ...limiter,
    }).on("error", (error) => console.error(error.message));
}

if (orders.role === "publish") await publish();
else if (cluster.isPrimary) {
  // The first counter says how many have an owner.
  const counter = fs.openSync(orders.counter, "r+");
  const cell = Buffer.alloc(8);
  cell.writeBigUInt64LE(BigInt(orders.processes));
  fs.writeSync(counter, cell, 0, 8, 0);
  for (let i = 0; i < orders.processes; i++) cluster.fork();
  process.on("SIGTERM", () => process.exit(0));
} else work();
