// The calls of E2B's code interpreter SDK for JavaScript, each with what it has to answer.
import assert from 'node:assert/strict'
import { Sandbox, NotFoundError, TimeoutError } from '@e2b/code-interpreter'

const checks = {
  async value(s) {
    const x = await s.runCode('x = 41\nx + 1')
    assert.deepEqual([x.text, x.error, x.logs, x.executionCount], ['42', undefined, { stdout: [], stderr: [] }, 1])
    assert.equal((await s.runCode('x')).text, '41')
  },

  async streams(s) {
    const out = []
    const results = []
    const x = await s.runCode("import sys\nprint('ünï ✓')\nprint('oops', file=sys.stderr)\n7", { onStdout: m => out.push(m.line), onResult: r => results.push(r.text) })
    assert.deepEqual([out.join(''), x.logs.stderr.join(''), results], ['ünï ✓\n', 'oops\n', ['7']])
  },

  async errors(s) {
    const x = await s.runCode("raise ValueError('no luck')")
    assert.deepEqual([x.error.name, x.error.value], ['ValueError', 'no luck'])
    assert.match(x.error.traceback, /ValueError/)
    assert.equal((await s.runCode('input()')).error.name, 'StdinNotImplementedError')
  },

  async results(s) {
    const x = await s.runCode('import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()')
    assert.equal(Buffer.from(x.results[0].png, 'base64').subarray(1, 4).toString(), 'PNG')
    assert.equal(x.results[0].isMainResult, false)
    const y = await s.runCode("from IPython.display import HTML, JSON, display\ndisplay(HTML('<b>b</b>')); display(JSON({'a': 1}))")
    assert.deepEqual([y.results[0].html, y.results[1].json], ['<b>b</b>', { a: 1 }])
  },

  async contexts(s) {
    const c = await s.createCodeContext({ cwd: '/tmp' })
    assert.deepEqual([c.language, c.cwd], ['python', '/tmp'])
    assert.equal((await s.runCode('import os; y = 1; os.getcwd()', { context: c })).text, '/tmp')
    assert.equal((await s.runCode('y')).error.name, 'NameError')
    assert.ok((await s.listCodeContexts()).some(x => x.id === c.id && x.cwd === '/tmp'))
    await s.restartCodeContext(c)
    assert.equal((await s.runCode('y', { context: c })).error.name, 'NameError')
    await s.removeCodeContext(c.id)
    await assert.rejects(s.runCode('1', { context: c }), NotFoundError)
    await assert.rejects(s.removeCodeContext(c), e => e instanceof NotFoundError && /not found/.test(e.message))
    await assert.rejects(s.createCodeContext({ language: 'r' }), /commands\.run/)
    await assert.rejects(s.runCode('1', { language: 'javascript' }), /not supported/)
  },

  async more(s) {
    const code = "import os; os.environ.get('ONCE')"
    assert.equal((await s.runCode(code, { envs: { ONCE: 'now' } })).text, 'now')
    assert.equal((await s.runCode(code)).text, undefined)
    await s.files.write('in.txt', 'read')
    assert.equal((await s.runCode("open('in.txt').read()")).text, 'read')
    await assert.rejects(s.runCode('kept = 1\nwhile True: pass', { timeoutMs: 700 }), TimeoutError)
    assert.equal((await s.runCode('kept')).text, '1')
    assert.equal((await s.runCode('import os; os._exit(1)')).error.name, 'KernelDied')
    assert.equal((await s.runCode('2')).text, '2')
  },
}

const s = await Sandbox.create({ timeoutMs: 120_000 })
try {
  for (const [name, f] of Object.entries(checks)) {
    const began = performance.now()
    await f(s)
    console.log(`ok ${name} ${((performance.now() - began) / 1000).toFixed(2)} s`)
  }
} finally {
  await s.kill()
}
const small = await Sandbox.create('small', { timeoutMs: 60_000 })
await assert.rejects(small.runCode('1'), /no python3.*sandboxd\/python/s)
await small.kill()
await assert.rejects(small.runCode('1'), TimeoutError)
process.exit() // the SDK leaves the timer of a refused request running, a minute
