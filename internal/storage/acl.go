package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// The tags of a POSIX access control list's entries, as the kernel has them (uapi/linux/posix_acl.h).
const (
	aclVersion = 2

	aclOwner  = 0x01
	aclGroup  = 0x04
	aclNamed  = 0x08 // a group by its number
	aclMask   = 0x10
	aclOthers = 0x20

	aclNobody = ^uint32(0) // the number of entries that name nobody
)

// An aclEntry gives rights (bits of rwx, as in a mode) to one party.
type aclEntry struct {
	tag, rights uint16
	id          uint32
}

// encodeACL writes a list as the extended attribute system.posix_acl_access or system.posix_acl_default holds
// it. Entries are in the order of their tags.
func encodeACL(list []aclEntry) []byte {
	value := binary.LittleEndian.AppendUint32(nil, aclVersion)
	for _, e := range list {
		value = binary.LittleEndian.AppendUint16(value, e.tag)
		value = binary.LittleEndian.AppendUint16(value, e.rights)
		value = binary.LittleEndian.AppendUint32(value, e.id)
	}
	return value
}

// groupACL lets the owner and the owning group write, and another group read. As a default of a folder it
// holds for what is made in it, whatever the umask of who makes it.
func groupACL(reader int) []byte {
	return encodeACL([]aclEntry{
		{aclOwner, 7, aclNobody}, {aclGroup, 7, aclNobody}, {aclNamed, 5, uint32(reader)}, {aclMask, 7, aclNobody},
		{aclOthers, 0, aclNobody},
	})
}

// partACL lets the owner write and the owning group read.
func partACL() []byte {
	return encodeACL([]aclEntry{{aclOwner, 7, aclNobody}, {aclGroup, 5, aclNobody}, {aclOthers, 0, aclNobody}})
}

// setACL gives an open folder an access control list, and the same to what is made in it.
func setACL(dir *os.File, value []byte) error {
	for _, attribute := range []string{aclOfFolder, aclOfContent} {
		err := unix.Fsetxattr(int(dir.Fd()), attribute, value, 0)
		if errors.Is(err, unix.EOPNOTSUPP) {
			return refused(ErrPath, "The file system of gpulab's data folder keeps no access control lists, so files in it "+
				"could not be shared. Mount it with the option acl, or move the data to ext4 or XFS.")
		}
		if err != nil {
			return fmt.Errorf("set %s: %w", attribute, err)
		}
	}
	return nil
}

// The extended attributes of access control lists.
const (
	aclOfFolder  = "system.posix_acl_access"
	aclOfContent = "system.posix_acl_default"
)
