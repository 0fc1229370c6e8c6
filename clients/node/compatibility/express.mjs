// Express: a guard refuses the third request of two, by the oldest and the newest client.
//
// with: express@4.17.0 redis@5.0.0
// with: express redis
// with: express ioredis@5.3.0
// with: express ioredis
// with: express iovalkey
// expect: 200 200 429

import "./lib/service.mjs";
