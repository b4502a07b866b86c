package embedk8s

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// A machine that gets another name later keeps the node's.
func TestHostRenamed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for a host name of its own")
	}
	rename := func(name string) {
		if err := unix.Sethostname([]byte(name)); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread has another host name, and ends with this goroutine
		if err := unix.Unshare(unix.CLONE_NEWUTS); err != nil {
			t.Error(err)
			return
		}
		rename("first.lab.example")
		dir := t.TempDir()
		first, err := LoadIdentity(dir)
		if err != nil || first.NodeName != "first" {
			t.Errorf("%+v, %v", first, err)
		}
		rename("second")
		if again, err := LoadIdentity(dir); err != nil || again != first {
			t.Errorf("it was %+v and is %+v, %v", first, again, err)
		}
		if other, err := LoadIdentity(t.TempDir()); err != nil || other.NodeName != "second" {
			t.Errorf("a new lab: %+v, %v", other, err)
		}
	}()
	<-done
}
