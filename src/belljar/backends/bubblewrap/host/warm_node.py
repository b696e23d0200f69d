"""A jar that waits for JavaScript with node's runtime up. Only the host imports this; the stage gets it in a message.

After the canaries have looked, the gate becomes `node -r SHIM MAIN`. The shim waits on the gate's descriptor for the
same word as the gate did. Then it closes that, sets what `node FILE ARGS…` would have set, and returns; node goes on to
run the code as its main module. So nothing of the shim is on the stack, in `process.argv`, or in `require.cache`.

- What node keeps of what it saw as it started may not be of the workspace, which is written later: it starts elsewhere.
- A getter gives a bound function for a main module of another name, once: neither is a frame of the code's stack.
- Threads of the code's load the shim again, because node has them load what it did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from belljar.backends.bubblewrap.shared import layout
from belljar.backends.contract import LaunchPlan

if TYPE_CHECKING:
    from typing import Any

SHIM = """'use strict';
process.execArgv.length = 0;
if (process._preload_modules) process._preload_modules.length = 0;
delete require.cache[__filename];
if (require('worker_threads').isMainThread) {
  const fs = require('fs'), Module = require('module'), gate = GATE_FD, some = Buffer.alloc(8);
  let word = '';
  for (let count; !word.endsWith('\\n') && (count = fs.readSync(gate, some)) > 0;) word += some.latin1Slice(0, count);
  if (word !== 'go\\n') process.reallyExit(125);
  fs.closeSync(gate);
  const { workdir, argv } = JSON.parse(fs.readFileSync(__dirname + '/COMMAND', 'utf8')), main = process.argv[1];
  process.chdir(workdir);
  process.argv.length = 1;
  for (const word of argv) process.argv.push(word);
  if (argv[0] !== main) {
    const known = Object.getOwnPropertyDescriptor(Module, 'runMain');
    const get = () => (Object.defineProperty(Module, 'runMain', known), known.value.bind(Module, argv[0]));
    Object.defineProperty(Module, 'runMain', { configurable: true, enumerable: true, get });
  }
}
""".replace("GATE_FD", str(layout.GATE_FD)).replace("COMMAND", layout.COMMAND)


def warm_interpreter(plan: LaunchPlan) -> dict[str, Any]:
    """What a jar that waits for this plan becomes, as running.Warm has it."""
    program, main = plan.argv[:2]
    return {"program": program, "env": dict(plan.env), "main": main, "workdir": plan.workdir, "shim": SHIM}
