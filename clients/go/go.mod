module emq.example/trial

go 1.23
