// Declarations of the parts of Node that the file store uses, so that no package of types is needed.

declare module "node:crypto" {
  export function createHash(name: "sha256"): {
    update(text: string): { digest(as: "hex"): string };
  };
  export function randomUUID(): string;
}

declare module "node:fs" {
  export const constants: { O_RDONLY: number; O_NOFOLLOW: number; O_NONBLOCK: number };
  export function closeSync(file: number): void;
  export function existsSync(path: string): boolean;
  export function fstatSync(file: number): { uid: number; isFile(): boolean };
  export function fsyncSync(file: number): void;
  export function linkSync(from: string, to: string): void;
  export function lstatSync(path: string): { mtimeMs: number };
  export function mkdirSync(path: string, options: { mode: number }): void;
  export function openSync(path: string, flags: string | number, mode?: number): number;
  export function readdirSync(path: string): string[];
  export function readFileSync(file: string | number, encoding: "utf8"): string;
  export function readlinkSync(path: string): string;
  export function renameSync(from: string, to: string): void;
  export function rmSync(path: string, options: { force: boolean }): void;
  export function writeFileSync(file: number, data: string): void;
}

declare module "node:os" {
  export function hostname(): string;
}

declare module "node:path" {
  export function basename(path: string): string;
  export function dirname(path: string): string;
  export function join(...parts: string[]): string;
  export function resolve(path: string): string;
}

declare const process: {
  readonly pid: number;
  getuid?: () => number;
  kill(pid: number, signal: 0): void;
};
