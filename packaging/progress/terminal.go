package progress

import (
	"os"
	"syscall"
	"unsafe"
)

// columns is the width of the terminal that f is, or 0.
func columns(f *os.File) int {
	var size struct{ rows, columns, x, y uint16 }
	_, _, failed := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&size)))
	if failed != 0 {
		return 0
	}
	if size.columns == 0 { // some terminals do not know
		return 80
	}
	return int(size.columns)
}
