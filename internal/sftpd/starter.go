package sftpd

import (
	"errors"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// starter starts children from one thread that lives as long as the server: a child is told when the thread that
// made it ends, and thereby also when gpulab is killed.
type starter struct {
	todo chan startRequest
	done chan struct{}
	stop func()
}

type startRequest struct {
	cmd    *exec.Cmd
	result chan error
}

func newStarter() *starter {
	s := &starter{todo: make(chan startRequest), done: make(chan struct{})}
	s.stop = sync.OnceFunc(func() { close(s.done) })
	return s
}

// run starts what it is asked to until stop. Its thread ends with it.
func (s *starter) run() {
	runtime.LockOSThread() // and never unlocked
	for {
		select {
		case <-s.done:
			return
		case r := <-s.todo:
			r.result <- r.cmd.Start()
		}
	}
}

func (s *starter) start(cmd *exec.Cmd) error {
	r := startRequest{cmd: cmd, result: make(chan error, 1)}
	select {
	case <-s.done:
		return errors.New("the server is ending")
	case s.todo <- r:
		return <-r.result
	}
}

// isolation gives a child its own mounts, and nothing to see of the machine's processes, network and names.
func isolation() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET |
			syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		Pdeathsig: syscall.SIGTERM, // see Child
		Setsid:    true,
	}
}
