// The calls of E2B's SDK for JavaScript, each with what it has to answer. The environment says where the daemon is.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { setTimeout as pause } from 'node:timers/promises'
import { AuthenticationError, CommandExitError, FileNotFoundError, InvalidArgumentError, NotFoundError, Sandbox, SandboxNotFoundError, Secret, Template, TimeoutError, Volume } from 'e2b'

const until = async (what, f) => {
  for (const end = Date.now() + 20_000; Date.now() < end; await pause(20)) if (await f()) return
  assert.fail(`${what}: not within 20 s`)
}

const checks = {
  async info(s) {
    const i = await s.getInfo()
    assert.equal(i.sandboxId, s.sandboxId)
    assert.equal(i.state, 'running')
    assert.deepEqual(i.metadata, { job: 'js &=' })
    await s.setTimeout(600_000)
    assert.ok((await s.getInfo()).endAt - i.endAt > 400_000)
    const page = Sandbox.list({ query: { metadata: { job: 'js &=' } } })
    assert.deepEqual((await page.nextItems()).map(x => x.sandboxId), [s.sandboxId])
    assert.equal(page.hasNext, false)
    assert.equal((await s.getMetrics()).length, 1)
    await assert.rejects(Sandbox.create('nothing-like-it'), /e2b\.templates/)
    await assert.rejects(Sandbox.create({ apiKey: 'sbx_' + '0'.repeat(32) }), AuthenticationError)
    await assert.rejects(Sandbox.connect('nothing-like-it'), NotFoundError)
  },

  async create() {
    const small = await Sandbox.create('small', { timeoutMs: 60_000, allowInternetAccess: false, lifecycle: { onTimeout: 'pause' } })
    try {
      assert.equal((await small.getInfo()).templateId, 'small')
      assert.equal((await Sandbox.list({ limit: 1 }).nextItems()).length, 1)
      await small.pause({ keepMemory: false })
      assert.deepEqual((await Sandbox.list({ query: { state: ['paused'] } }).nextItems()).map(x => x.sandboxId), [small.sandboxId])
      const again = await small.connect()
      assert.equal(await again.isRunning(), true)
    } finally {
      assert.equal(await small.kill(), true)
    }
    assert.equal(await small.kill(), false)
  },

  async run(s) {
    const out = []
    const r = await s.commands.run('echo $E; echo err >&2', { onStdout: d => out.push(d) })
    assert.deepEqual([r.stdout, r.stderr, r.exitCode, out], ["it's\n", 'err\n', 0, ["it's\n"]])
    await assert.rejects(s.commands.run('exit 3'), e => e instanceof CommandExitError && e.exitCode === 3)
    await assert.rejects(s.commands.run('sleep 100', { timeoutMs: 300 }), TimeoutError)
    assert.equal((await s.commands.run('id -un; pwd', { user: 'nobody', cwd: '/tmp' })).stdout, 'nobody\n/tmp\n')
    assert.equal((await s.commands.run('head -c 10000000 /dev/zero | tr "\\0" x')).stdout.length, 10_000_000)
  },

  async background(s) {
    const h = await s.commands.run('cat; exit 4', { background: true, stdin: true })
    assert.ok((await s.commands.list()).some(p => p.pid === h.pid))
    await s.commands.sendStdin(h.pid, 'in\n')
    const other = await s.commands.connect(h.pid)
    await s.commands.sendStdin(h.pid, 'more\n')
    await s.commands.closeStdin(h.pid)
    await assert.rejects(h.wait(), e => e.exitCode === 4 && e.stdout === 'in\nmore\n')
    await assert.rejects(other.wait(), e => e.exitCode === 4 && e.stdout.endsWith('more\n'))
    const long = await s.commands.run('sleep 1000', { background: true })
    assert.equal(await s.commands.kill(long.pid), true)
    await until('it is gone', async () => !(await s.commands.list()).some(p => p.pid === long.pid))
    assert.equal(await s.commands.kill(long.pid), false)
  },

  async pty(s) {
    let text = ''
    const h = await s.pty.create({ cols: 80, rows: 24, onData: d => (text += new TextDecoder().decode(d)) })
    await s.pty.resize(h.pid, { cols: 101, rows: 31 })
    await s.pty.sendInput(h.pid, new TextEncoder().encode('stty size; exit\n'))
    await h.wait()
    assert.match(text, /31 101/)
    let seen = ''
    const first = await s.pty.create({ cols: 80, rows: 24, onData: () => {} })
    await s.pty.connect(first.pid, { onData: d => (seen += new TextDecoder().decode(d)) })
    await s.pty.sendInput(first.pid, new TextEncoder().encode('echo $((40 + 2))-here\n'))
    await until('it is shown', () => seen.includes('42-here'))
    assert.equal(await s.pty.kill(first.pid), true)
  },

  async files(s) {
    const f = s.files
    assert.equal((await f.write('/tmp/x/a.txt', 'héllo')).path, '/tmp/x/a.txt')
    assert.equal(await f.read('/tmp/x/a.txt'), 'héllo')
    const data = randomBytes(3 << 20)
    await f.write('/tmp/x/b', new Blob([data]))
    assert.deepEqual(Buffer.from(await f.read('/tmp/x/b', { format: 'bytes' })), data)
    let n = 0
    for await (const part of await f.read('/tmp/x/b', { format: 'stream' })) n += part.length
    assert.equal(n, data.length)
    assert.deepEqual((await f.write([{ path: '/tmp/x/c', data: 'c' }, { path: '/tmp/x/d', data: 'd' }])).map(w => w.path), ['/tmp/x/c', '/tmp/x/d'])
    assert.deepEqual((await f.list('/tmp/x')).map(e => e.name), ['a.txt', 'b', 'c', 'd'])
    assert.equal(await f.exists('/tmp/x/nothing'), false)
    assert.deepEqual([await f.makeDir('/tmp/x/e'), await f.makeDir('/tmp/x/e')], [true, false])
    assert.equal((await f.getInfo('/tmp/x/c')).size, 1)
    assert.equal((await f.rename('/tmp/x/c', '/tmp/x/e/c')).path, '/tmp/x/e/c')
    await f.remove('/tmp/x/e')
    await assert.rejects(f.read('/tmp/x/e/c'), FileNotFoundError)
    await assert.rejects(f.read('/tmp/x'), InvalidArgumentError)
  },

  async git(s) {
    await s.git.init('/tmp/repository')
    await s.files.write('/tmp/repository/new', '1')
    assert.deepEqual((await s.git.status('/tmp/repository')).fileStatus.map(f => f.name), ['new'])
  },

  // What is not supported is refused by name, and nobody is sent to a service of E2B's instead.
  async absent(s) {
    const not = /not supported/
    await assert.rejects(s.createSnapshot(), not)
    await assert.rejects(s.listSnapshots().nextItems(), not)
    await assert.rejects(Sandbox.deleteSnapshot('x'), not)
    await assert.rejects(s.fork(), not)
    await assert.rejects(s.updateNetwork({ denyOut: ['0.0.0.0/0'] }), not)
    await assert.rejects(Sandbox.create({ lifecycle: { onTimeout: 'pause', autoResume: true } }), not)
    await assert.rejects(Volume.create('x'), not)
    await assert.rejects(Secret.create('x', 'y'), not)
    await assert.rejects(Template.build(Template().fromImage('debian'), 'x'), not)
    await assert.rejects(s.files.write('/tmp/m', 'x', { metadata: { a: 'b' } }), not)
    await assert.rejects(s.files.write('/tmp/z', 'x'.repeat(1000), { gzip: true }), /compressed uploads are not supported/)
    for (const host of [s.getHost(3000), new URL(s.getMcpUrl()).host]) assert.match(host, /\.not-served-here\.set-e2b-sandbox-url\.invalid$/)
    await assert.rejects(s.getMcpToken(), FileNotFoundError)
    for (const answer of [await fetch(await s.downloadUrl('/etc/hosts')), await fetch(await s.uploadUrl('/tmp/x'), { method: 'POST', body: 'x' })]) {
      assert.equal(answer.status, 501)
      assert.match((await answer.json()).message, /signed URLs are not supported/)
    }
  },

  // What a newcomer gets wrong, and what the SDK then tells them.
  async slips() {
    const url = process.env.E2B_API_URL
    const root = url.replace(/\/e2b$/, '')
    for (const [apiUrl, sandboxUrl] of [[root, root], [url, root], [url, url + '//']]) {
      let wrong
      try {
        await assert.rejects(async () => {
          wrong = await Sandbox.create({ timeoutMs: 60_000, apiUrl, sandboxUrl })
          await wrong.commands.run('true')
        }, /end with it/)
      } finally {
        if (wrong) await Sandbox.kill(wrong.sandboxId)
      }
    }
    await assert.rejects(Sandbox.create({ apiKey: 'e2b_' + '0'.repeat(40) }), /unknown token.*sandboxd token new/)
  },

  async watch(s) {
    const seen = []
    await s.files.makeDir('/tmp/watched')
    const w = await s.files.watchDir('/tmp/watched', e => seen.push(e))
    await s.files.write('/tmp/watched/n', '1')
    await until('it is told of', () => seen.some(e => e.name === 'n' && e.type === 'create'))
    await s.files.remove('/tmp/watched/n')
    await until('its removal is told of', () => seen.some(e => e.name === 'n' && e.type === 'remove'))
    await w.stop()
  },

  async pause(s) {
    await s.pause()
    assert.equal((await s.getInfo()).state, 'paused')
    assert.equal(await s.isRunning(), false)
    const again = await Sandbox.connect(s.sandboxId)
    assert.equal((await again.commands.run('echo back')).stdout, 'back\n')
  },
}

const s = await Sandbox.create('base', { timeoutMs: 120_000, metadata: { job: 'js &=' }, envs: { E: "it's" } })
try {
  for (const [name, f] of Object.entries(checks)) {
    const began = Date.now()
    await f(s)
    console.log(`ok ${name} ${((Date.now() - began) / 1000).toFixed(2)} s`)
  }
} finally {
  assert.equal(await s.kill(), true)
}
assert.equal(await s.isRunning(), false)
await assert.rejects(s.getInfo(), SandboxNotFoundError)
