// Express under New Relic refuses the third request of two.
//
// with: newrelic express redis
// with: newrelic express ioredis
// run: NEW_RELIC_LICENSE_KEY=0123456789012345678901234567890123456789 NEW_RELIC_APP_NAME=row NEW_RELIC_LOG_ENABLED=false node --require newrelic lib/service.cjs
// expect: 200 200 429
