package mail

// Over is how many conditions that somebody was told of are taken for over.
func (s *Service) Over() int {
	s.looking.Lock()
	defer s.looking.Unlock()
	return len(s.over)
}
