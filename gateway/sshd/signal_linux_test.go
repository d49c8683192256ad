package sshd

import "syscall"

const stopSignal = syscall.SIGSTOP
