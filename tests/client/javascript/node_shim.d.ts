// As much of Node as the file store uses, so that no package of types is needed.

declare module "node:crypto" {
  export function createHash(name: "sha256"): {
    update(text: string): { digest(as: "hex"): string };
  };
  export function randomUUID(): string;
}

declare module "node:fs" {
  export function closeSync(file: number): void;
  export function existsSync(path: string): boolean;
  export function fsyncSync(file: number): void;
  export function linkSync(from: string, to: string): void;
  export function mkdirSync(path: string, options: { recursive: boolean; mode: number }): void;
  export function openSync(path: string, flags: string, mode: number): number;
  export function readFileSync(path: string, encoding: "utf8"): string;
  export function renameSync(from: string, to: string): void;
  export function rmSync(path: string, options: { force: boolean }): void;
  export function statSync(path: string): { mtimeMs: number };
  export function writeFileSync(
    file: string | number,
    data: string,
    options?: { flag: string; mode: number },
  ): void;
}

declare module "node:path" {
  export function dirname(path: string): string;
}

declare const process: { readonly pid: number; kill(pid: number, signal: 0): void };
