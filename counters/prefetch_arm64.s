#include "textflag.h"

// func prefetch(s *shard, group uintptr)
TEXT ·prefetch(SB), NOSPLIT, $0-16
	MOVD s+0(FP), R1
	MOVD group+8(FP), R0
	PRFM (R1), PLDL1KEEP
	PRFM (R0), PLDL1KEEP
	PRFM 64(R0), PLDL1KEEP
	PRFM 128(R0), PLDL1KEEP
	PRFM 192(R0), PLDL1KEEP
	PRFM 256(R0), PLDL1KEEP
	PRFM 320(R0), PLDL1KEEP
	RET
