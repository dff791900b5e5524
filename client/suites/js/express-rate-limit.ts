// @ts-nocheck
import { RlnodeStore } from 'rlnode/express-rate-limit'
import suite from 'rlnode/suite'

export class MemoryStore extends RlnodeStore {
	constructor() {
		super(suite.options())
	}
}
