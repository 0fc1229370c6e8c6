// Express under Elastic's agent refuses the third request of two.
//
// with: elastic-apm-node express redis
// with: elastic-apm-node express ioredis
// run: ELASTIC_APM_LOG_LEVEL=off ELASTIC_APM_SERVER_URL=http://127.0.0.1:1 node --require elastic-apm-node/start.js lib/service.cjs
// expect: 200 200 429
