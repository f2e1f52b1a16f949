// Judges each character up to U+FFFF, as a name of its own, by the schemas that two generators make
// of the description, and by its pattern with each flag that JavaScript has for characters. All have
// to say the same. The bodies with a name that they take go to one file, and the others to another:
// clients_description_test.go asks the service about both.

import { readFileSync, writeFileSync } from "node:fs";
import { zNewPet } from "./generated/hey/zod.gen.js";
import { schemas } from "./generated/zodios.js";

const description = JSON.parse(readFileSync("generated/openapi.json", "utf8"));
const pattern: string = description.components.schemas.NewPet.properties.name.pattern;
const judges: ((name: string) => boolean)[] = [
  (name) => zNewPet.shape.name.safeParse(name).success,
  (name) => schemas.NewPet.shape.name.safeParse(name).success,
  ...["", "u", "v"].map((flags) => {
    const regexp = new RegExp(pattern, flags);
    return (name: string) => regexp.test(name);
  }),
];

const taken: string[] = [];
const refused: string[] = [];
for (let c = 0; c <= 0xffff; c++) {
  if (c >= 0xd800 && c <= 0xdfff) continue; // half of a character
  const name = String.fromCharCode(c);
  const verdicts = new Set(judges.map((judge) => judge(name)));
  if (verdicts.size > 1) {
    console.error(`of U+${c.toString(16)} the schemas and the pattern do not say the same`);
    process.exit(1);
  }
  const body = JSON.stringify({ name, categoryId: 1 });
  (verdicts.has(true) ? taken : refused).push(body + "\n");
}
writeFileSync("generated/taken.jsonl", taken.join(""));
writeFileSync("generated/refused.jsonl", refused.join(""));
