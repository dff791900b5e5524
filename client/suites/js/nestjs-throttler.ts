// @ts-nocheck
import { Injectable } from '@nestjs/common';
import { RlnodeStorage } from 'rlnode/nestjs-throttler';
import { options } from 'rlnode/suite';

@Injectable()
export class ThrottlerStorageService extends RlnodeStorage {
  constructor() {
    super(options());
  }
}
