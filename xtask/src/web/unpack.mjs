// Unpacks SwiftShader, a Vulkan driver on the CPU, from the package that brings it.
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync } from 'node:fs';
import { brotliDecompressSync } from 'node:zlib';

const packed = 'node_modules/@sparticuz/chromium/bin/swiftshader.tar.br';
mkdirSync('swiftshader', { recursive: true });
execFileSync('tar', ['-x', '-C', 'swiftshader'], { input: brotliDecompressSync(readFileSync(packed)) });
