# A kernel of the sandbox: ipykernel's own, but for how what is printed leaves it. ipykernel loses what a program prints just before a call
# ends, collects without bound what nobody reads, and waits for a thread six times a call to print nothing.
import sys

sys.path = [p for p in sys.path if p]  # not the directory where code begins, nor what is in it in place of what this needs
import codecs, logging, os, select, threading, warnings

from ipykernel.kernelapp import IPKernelApp

own = os.getpid()  # a fork of the kernel leaves what is the kernel's alone


def capture(stream, fd, most=1 << 16):
    """Has stream print what comes by fd, too: before what is printed next, and before a flush ends. Who prints faster than the kernel sends waits."""
    write, flush = stream.write, stream.flush
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    lock = threading.RLock()  # held from reading to writing: who has it after that finds what was read written
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

    def drain():  # one read takes all that is in a pipe; False: nobody can write any more
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
        if not sent:  # else there is nothing, and the thread that would say so need not be asked
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
# What IPython says of sys.exit to people at its prompt is nothing to a program.
warnings.filterwarnings("ignore", "To exit: use", UserWarning)
log = os.fdopen(os.dup(2), "w", buffering=1)  # its log stays the server's
for handler in kernel.log.handlers:
    if isinstance(handler, logging.StreamHandler):
        handler.setStream(log)
capture(sys.stdout, 1), capture(sys.stderr, 2)
kernel.start()
