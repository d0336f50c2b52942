// Gives Node a browser's WebGPU, by Dawn. Exits with 3 where Dawn accepts no adapter.
import { create, globals } from 'webgpu';

Object.assign(globalThis, globals, { Window: class {} });
const gpu = create([]);
Object.defineProperty(globalThis, 'navigator', { value: { gpu }, configurable: true });

if (process.argv[2] === 'probe') {
    const adapter = await gpu.requestAdapter();
    console.log(adapter ? adapter.info.description : 'none');
    process.exit(adapter ? 0 : 3);
}
