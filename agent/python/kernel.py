# The kernel of a sandbox: ipykernel with its own capture of output. ipykernel loses output of
# programs just before a call ends, buffers unread output without a limit, and waits for a thread
# six times per call without output.
import sys

# Without the working directory: its files must not replace modules that this script imports.
sys.path = [p for p in sys.path if p]
import codecs, logging, os, select, threading, warnings

from ipykernel.kernelapp import IPKernelApp

own = os.getpid()  # a fork of the kernel does not read its pipes


def capture(stream, fd, most=1 << 16):
    """Makes stream print what arrives on fd, before later text and before the end of a flush. A
    program that prints faster than the kernel sends waits."""
    write, flush = stream.write, stream.flush
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    lock = threading.RLock()  # held while data is read and written, so that its order is kept
    held, sent = 0, True
    inner, outer = os.pipe()
    os.set_blocking(inner, False)
    os.dup2(outer, fd)
    os.close(outer)

    def wait(n):
        nonlocal held
        held += n
        if held > most:
            held = 0
            stream.flush()

    def drain():  # one read empties the pipe; False means that all writers have closed it
        nonlocal sent
        with lock:
            try:
                data = os.read(inner, 1 << 16)
            except BlockingIOError:
                return True
            if data:
                write(decode(data))
                sent = False
        wait(len(data))
        return bool(data)

    def printed(text):
        nonlocal sent
        if os.getpid() == own:
            drain()
        n = write(text)
        sent = False
        wait(len(text))
        return n

    def flushed():
        nonlocal sent
        if os.getpid() != own:
            return flush()
        drain()
        if not sent:  # without new output, do not wait for ipykernel's thread
            sent = True
            flush()

    def watch():
        ready = select.poll()
        ready.register(inner, select.POLLIN)
        while True:
            ready.poll()
            if not drain():
                return

    stream.write, stream.flush, stream.fileno = printed, flushed, lambda: fd
    threading.Thread(target=watch, daemon=True).start()


kernel = IPKernelApp.instance()
kernel.initialize()
# Suppress IPython's advice on sys.exit, which is for people at its prompt.
warnings.filterwarnings("ignore", "To exit: use", UserWarning)
log = os.fdopen(os.dup(2), "w", buffering=1)  # the log still goes to the server
for handler in kernel.log.handlers:
    if isinstance(handler, logging.StreamHandler):
        handler.setStream(log)
capture(sys.stdout, 1), capture(sys.stderr, 2)
kernel.start()
