// The linter's settings: of typescript-eslint, what it recommends; where the types are known, all that is strict.

const tseslint = require("typescript-eslint");

module.exports = tseslint.config(
  {
    ignores: [
      "dist",
      "test/out",
      "src/memory/code.ts",
      "src/lines/error-table.ts",
      "*.config.js",
      "embed.js",
    ],
  },
  tseslint.configs.recommended,
  { files: ["**/*.cjs"], rules: { "@typescript-eslint/no-require-imports": "off" } },
  {
    files: ["src/**"],
    extends: [tseslint.configs.strictTypeChecked],
    languageOptions: { parserOptions: { project: "./tsconfig.json" } },
    rules: {
      "@typescript-eslint/no-confusing-void-expression": ["error", { ignoreArrowShorthand: true }],
      // Private members of a library.
      "no-underscore-dangle": "error",
      "@typescript-eslint/no-invalid-void-type": ["error", { allowAsThisParameter: true }],
      "@typescript-eslint/prefer-promise-reject-errors": ["error", { allowThrowingUnknown: true }],
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
    },
  },
);
