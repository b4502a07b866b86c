package storage

import "strings"

// Who says in words who may do what in a folder.
func (f Folder) Who() string {
	groups := "the group " + strings.Join(f.Groups, ", ")
	switch {
	case len(f.Groups) == 0 && (f.Kind == Group || f.Kind == HandIn):
		return "nobody: its group was removed"
	case len(f.Groups) > 1:
		groups = "the groups " + strings.Join(f.Groups, ", ")
	}
	switch f.Kind {
	case Group:
		text := groups + " writes"
		switch f.Guests {
		case Read:
			text += ", guests in it read"
		case None:
			text += ", guests in it see nothing"
		}
		if f.Others == Read {
			text += ", everybody reads"
		}
		return text
	case HandIn:
		return "each of " + groups + " writes a part of their own; leads and admins read all"
	case Dataset:
		return f.readers(groups) + " reads, admins write"
	}
	return f.readers(groups) + " reads"
}

func (f Folder) readers(groups string) string {
	if f.Others == Read || len(f.Groups) == 0 {
		if f.Others == None {
			return "nobody but admins"
		}
		return "everybody"
	}
	return groups
}

// Detail is what the audit log tells of a folder.
func (f Folder) Detail() string {
	text := f.Kind.Words() + ": " + f.Who()
	if f.Path != "" {
		text += "; " + f.Path
	}
	return text
}
