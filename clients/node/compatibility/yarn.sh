# Yarn with Plug'n'Play: the package is found in its archive, and refuses the third request of two.
#
# language: node
# with: @yarnpkg/cli-dist@4
# expect: 200 200 429
# expect: 429 429 429

yarn=$PWD/node_modules/@yarnpkg/cli-dist/bin/yarn.js
mkdir project && cp -r lib project && cd project
echo '{ "name": "row", "private": true }' > package.json && touch yarn.lock
export YARN_ENABLE_TELEMETRY=0 YARN_GLOBAL_FOLDER=$PWD/global YARN_NODE_LINKER=pnp YARN_NPM_REGISTRY_SERVER=$(npm config get registry)
export YARN_PNP_ENABLE_ESM_LOADER=true YARN_ENABLE_GLOBAL_CACHE=false YARN_UNSAFE_HTTP_WHITELIST='*' YARN_NPM_MINIMAL_AGE_GATE=0
node "$yarn" add "redis-rl@file:$TARBALL" express redis >log 2>&1 || cat log >&2
node "$yarn" node lib/service.mjs
node "$yarn" node lib/service.cjs
