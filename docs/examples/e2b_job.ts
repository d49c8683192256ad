// Runs a server in a sandbox by E2B's SDK, and asks it something. E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY as docs/how-to/e2b.md says.
import { CommandExitError, Sandbox } from 'e2b'

const sandbox = await Sandbox.create({ timeoutMs: 300_000, metadata: { job: 'example' } })
try {
  await sandbox.files.write('/srv/index.html', 'served from inside\n')
  const server = await sandbox.commands.run('python3 -m http.server 8000', { cwd: '/srv', background: true, timeoutMs: 0 })
  const ask = 'for i in $(seq 100); do curl -s http://localhost:8000/ && exit; sleep 0.1; done; exit 1'
  console.log((await sandbox.commands.run(ask)).stdout.trim())
  console.log('killed:', await sandbox.commands.kill(server.pid))
  await sandbox.commands.run('exit 3').catch(e => {
    if (!(e instanceof CommandExitError)) throw e
    console.log('exit code', e.exitCode)
  })
} finally {
  await sandbox.kill()
}
