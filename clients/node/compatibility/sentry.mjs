// Express under Sentry refuses the third request of two.
//
// with: @sentry/node@8 express@4 redis@5
// with: @sentry/node express ioredis
// with: @sentry/node express redis
// run: echo 'import * as sentry from "@sentry/node"; sentry.init({ dsn: "https://k@localhost/1", tracesSampleRate: 1 });' > instrument.mjs && node --import ./instrument.mjs lib/service.mjs
// expect: 200 200 429
