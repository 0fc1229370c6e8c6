# pnpm: the package is found, and refuses the third request of two; also where a workspace has two copies of it.
#
# language: node
# with: pnpm@9
# with: pnpm
# expect: 200 200 429

mkdir project && cp -r lib project && cd project
echo '{ "private": true }' > package.json
npm_config_store_dir=$PWD/../store npx pnpm add --silent "$TARBALL" express redis >&2
node lib/service.mjs
